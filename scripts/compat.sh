#!/bin/sh
# Compares the accounts with the runtime's own on releases from the oldest that
# runs on mock chips to the newest, and notes in test/compat/runs.tsv which
# agree. A release takes half a minute to install and 600 MB, which are given
# back unless it was there before.
set -u
cache=${TT_MEMTRACE_RIG:-${XDG_CACHE_HOME:-$HOME/.cache}/tt-memtrace/rig}
releases=${*:-0.66.0 0.67.4 0.69.0 0.70.1 0.72.0 0.74.0 0.75.0 0.76.0 0.77.0 0.78.0 0.79.0 0.80.0 0.81.1}
failed=
runs=test/compat/runs.tsv
for release in $releases; do
	there=$(test -d "$cache/ttnn-$release" && echo yes)
	case $release in
	0.6[789].* | 0.7[0-4].*) # there the mock places nothing for programs
		how="buffers, with slow dispatch"
		tests='Accounts|TrackingOff|ByPID|SystemWide|Killed|OutOfMemory|CloseWith'
		;;
	*)
		how="buffers and programs"
		tests=.
		;;
	esac
	grep -v "^$release	" $runs >$runs.new
	if TT_MEMTRACE_RELEASE=$release go test ./test/e2e -run "$tests" -count 1 -timeout 18m; then
		printf '%s\t%s\n' "$release" "$how" >>$runs.new
	else
		failed="$failed $release"
	fi
	{ head -n 1 $runs.new && tail -n +2 $runs.new | sort -V; } >$runs
	rm $runs.new
	test -n "$there" || rm -rf "$cache/ttnn-$release" "$cache/ttnn-$release.lock" "$cache/kernels-$release-"*
done
# The stacks and reports of the default release, with the other Python.
TT_MEMTRACE_PYTHON=3.12 go test ./test/e2e -run ReportSaysWho -count 1 -timeout 18m || failed="$failed Python 3.12"
rm -rf "$cache"/ttnn-*-python3.12*
go generate ./test/compat
test -z "$failed" || { echo "not as the runtime says:$failed" >&2; exit 1; }
