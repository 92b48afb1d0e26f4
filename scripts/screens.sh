#!/bin/sh
# Takes the pictures of docs/ui.md again: every view of the real runtime on eight mock chips,
# in a terminal of tmux's, as text, and some of them as images in docs/pictures; one of these shows
# several, in turn. Tracing takes root.
set -eu
cd "$(dirname "$0")/.."
socket=tt-memtrace-screens-$$
config=$(mktemp -d)
trap 'tmux -L $socket kill-server 2>/dev/null || true; rm -rf "$config"' EXIT
mkdir -p docs/pictures
go build -o "$config/picture" ./test/picture
python3 test/rig/rig.py install >/dev/null

# A loop and, once there is a file of that name, a program on the same chips whose allocations fail.
run="python3 test/rig/rig.py run --cluster t3k --first-chip-id 9000"
workload="$run test/rig/loop.py --cluster t3k --seconds 300 --rate 60 >/dev/null &
	until [ -e $config/fail ]; do sleep 0.1; done
	$run test/rig/leak.py --cluster t3k >/dev/null
	wait"
tmux -L "$socket" -f /dev/null new-session -d -x 120 -y 36 \
	env LC_ALL=C.UTF-8 COLORTERM=truecolor XDG_CONFIG_HOME="$config" ./tt-memtrace top --stacks --view overview -- sh -c "$workload"

# await TEXT: until it is on the screen, and what there is has been read, for a minute at most
await() {
	n=0
	until tmux -L "$socket" capture-pane -p | awk -v text="$1" 'index($0, text) { seen = 1 } /^ +…$/ { busy = 1 } END { exit !seen || busy }'; do
		n=$((n + 1))
		test $n -lt 600 || { echo "no \"$1\" on the screen" >&2; exit 1; }
		sleep 0.1
	done
}
# picture NAME TEXT KEYS...: presses keys, and puts the screen that has the text in its place in docs/ui.md
picture() {
	name=$1 text=$2
	shift 2
	tmux -L "$socket" send-keys "$@"
	await "$text"
	tmux -L "$socket" capture-pane -e -p >"$config/$name"
	case " $images " in
	*" $name "*) "$config/picture" -columns 120 "$config/$name" >docs/pictures/"$name".svg ;;
	esac
	tmux -L "$socket" capture-pane -p | python3 -c '
import re, sys
name, page = sys.argv[1], open("docs/ui.md").read()
lines = [line.rstrip() for line in sys.stdin.read().split("\n")]
# Rows without anything say nothing.
kept = [l for i, l in enumerate(lines) if l or i and lines[i - 1]]
picture = "\n".join(kept).strip("\n")
place = re.compile("(<!-- picture " + name + " -->\n```\n)(?:(?!```).*\n)*(```)")
if not place.search(page):
    sys.exit("docs/ui.md has no place for " + name)
open("docs/ui.md", "w").write(place.sub(lambda m: m[1] + picture + "\n" + m[2], page))
' "$name"
}

images="overview chip charts map-l1 sites why"

await "8 chips"
await "loop.py"
sleep 40 # the charts show what was
picture overview "ALLOCS" 1
picture chip "cores, by what" 2
picture charts "minutes to now" 3
picture map-l1 "╲ kernel-config ring" 4
picture map-dram "free or reserved" Tab
picture buffers "in the process" 5 Down Down Enter
picture circular "PER CORE" Tab
picture programs "LAUNCHES" Tab
picture kernels "PROCESSOR" Tab
picture events "following" 6
picture processes " yes " 7
picture sites "ALLOCATED BY" 8
picture help "everywhere" '?'
tmux -L "$socket" send-keys '?' 1
touch "$config/fail"
await "L1 CLASH"
picture why "allocations failed ─" '!'
tmux -L "$socket" send-keys Escape q
cd "$config"
./picture -columns 120 overview chip charts map-l1 sites why >"$OLDPWD/docs/pictures/tour.svg"
