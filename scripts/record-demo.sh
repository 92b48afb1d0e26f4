#!/bin/sh
# Records again what `tt-memtrace demo` shows: the real runtime on eight mock
# chips, a steady workload with two others beside it for a while.
set -eu
cd "$(dirname "$0")/.."
file=cmd/tt-memtrace/demo.ttm
rig="python3 test/rig/rig.py run --cluster t3k --first-chip-id 1" # on the same chips
for each in loop workload programs; do
	export "$each=exec $rig test/rig/$each.py --cluster t3k"
done
rm -f $file.new
./tt-memtrace record $file.new -- sh -c '
	sh -c "$loop --seconds 60 --rate 50" >/dev/null 2>&1 &
	sleep 12
	while sleep 0.2; do echo go; done | sh -c "$programs --times 2" >/dev/null 2>&1 &
	sleep 8
	while sleep 0.5; do echo go; done | sh -c "$workload --steps 800 --rest-every 20" >/dev/null 2>&1
	wait'
mv $file.new $file
