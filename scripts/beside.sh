#!/bin/sh
# Runs a command beside unrelated programs of the runtime: scripts/beside.sh COMMAND...
# Until it ends, three such programs allocate, fail, fork and exit in a loop.
set -eu
test $# -gt 0 || { sed -n 's/^# \(Runs.*\)/\1/p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
log=$(mktemp)
pids=

# ended kills the process groups of all neighbours and waits for them.
ended() {
	for pid in $pids; do
		kill -- "-$pid" 2>/dev/null || true
	done
	wait
	python3 test/rig/rig.py sweep >/dev/null
	rm -f "$log"
}
trap ended EXIT
trap 'exit 1' INT TERM

# neighbour CLUSTER SCRIPT ARGS...: loops a rig script in its own process group.
neighbour() {
	cluster=$1 script=$2
	shift 2
	# shellcheck disable=SC2016
	setsid sh -c 'while :; do python3 test/rig/rig.py run --cluster "$0" "$@" || exit; done' \
		"$cluster" "test/rig/$script" --cluster "$cluster" "$@" >>"$log" 2>&1 </dev/null &
	pids="$pids $!"
}
neighbour n150 failures.py
neighbour t3k leak.py
neighbour n300 workload.py --no-wait
code=0
"$@" || code=$?
for pid in $pids; do
	kill -0 "$pid" 2>/dev/null || {
		echo "a neighbour ended, so this run proves nothing:" >&2
		tail -n 20 "$log" >&2
		code=1
	}
done
exit $code
