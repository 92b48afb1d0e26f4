#!/bin/sh
# Compares the accounts with the runtime's own on releases from the oldest that
# runs on mock chips to the newest, and notes in test/compat/runs.tsv which
# agree: scripts/compat.sh [RELEASE...]. A release takes two minutes, and half a
# minute and 600 MB to install, which are given back unless it was there before.
# Without arguments it also compares the default release with the other Python.
set -u
cache=${TT_MEMTRACE_RIG:-${XDG_CACHE_HOME:-$HOME/.cache}/tt-memtrace/rig}
releases=${*:-0.66.0 0.67.4 0.69.0 0.70.1 0.72.0 0.74.0 0.75.0 0.76.0 0.77.0 0.78.0 0.79.0 0.80.0 0.81.1}
failed=
runs=test/compat/runs.tsv
log=$(mktemp)
trap 'rm -f "$log" $runs.new' EXIT
for release in $releases; do
	there=$(test -d "$cache/ttnn-$release" && echo yes)
	echo "$release"
	# What is forwarded and recorded, how processes are found, and Python's frames
	# are the same on all.
	{
		TT_MEMTRACE_RELEASE=$release TT_MEMTRACE_WAYS_ALL=1 go test ./test/e2e -count 1 -timeout 30m -v \
			-skip 'TestServerHasTheSnapshot|TestReplayIsTheSameAsLive|TestManyProcessesOfTheHost|TestPythonFrames|TestOldestRelease' &&
			TT_MEMTRACE_RELEASE=$release go test ./test/cli -count 1 -timeout 18m -v -run '^TestOrdinaryUserSamplesTheRuntime$'
	} >"$log" 2>&1
	code=$?
	grep -E '^(--- |panic|FAIL)' "$log"
	# What was compared, the tests say. Skipped ones, as without rights, compare nothing.
	what=$(sed -n "s/.* on $release are compared: //p" "$log")
	grep -v "^$release	" $runs >$runs.new
	if test $code -eq 0 && grep -q '^--- PASS: TestAccountsEqualTheRuntimes' "$log" && test -n "$what"; then
		printf '%s\t%s\n' "$release" "$what" >>$runs.new
	else
		failed="$failed $release"
		cat "$log"
	fi
	{ head -n 1 $runs.new && tail -n +2 $runs.new | sort -V; } >$runs
	test -n "$there" || rm -rf "$cache/ttnn-$release" "$cache/ttnn-$release.lock" "$cache/kernels-$release-"*
done
# The stacks and reports of the default release, with the other Python.
if test $# -eq 0; then
	TT_MEMTRACE_PYTHON=3.12 go test ./test/e2e -run ReportNamesCallSites -count 1 -timeout 18m || failed="$failed Python 3.12"
	rm -rf "$cache"/ttnn-*-python3.12*
fi
go generate ./test/compat
test -z "$failed" || { echo "not as the runtime says:$failed" >&2; exit 1; }
