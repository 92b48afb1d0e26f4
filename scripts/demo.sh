#!/bin/sh
# Traces the real runtime on eight mock chips, live: the screen in a terminal, text
# otherwise. Nothing but Go, Python and, once, apt and pip is needed.
set -eu
cd "$(dirname "$0")/.."
seconds=${DEMO_SECONDS:-30}

sudo=
if [ "$(id -u)" != 0 ]; then
	echo "tracing takes root: sudo may ask for your password" >&2
	sudo="sudo -E"
fi
python=python3
command -v python3 >/dev/null 2>&1 || $sudo scripts/deps.sh test
echo "getting the runtime, once" >&2
$sudo $python test/rig/rig.py install >/dev/null

# The workload's own lines would spoil the screen.
workload="exec $python test/rig/rig.py run --cluster t3k test/rig/loop.py --cluster t3k --seconds $seconds --rate 300 >/dev/null"
if [ -t 1 ]; then
	exec $sudo ./tt-memtrace top --exit -- sh -c "$workload"
fi
exec $sudo ./tt-memtrace status --every 1s -- sh -c "$workload"
