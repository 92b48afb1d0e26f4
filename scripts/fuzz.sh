#!/bin/sh
# Gives every fuzz target of the tree some inputs or some time: scripts/fuzz.sh 5000x
# (or 5s). Inputs are counted by default: when a time runs out, Go sometimes calls
# its own end of the run a failure (golang/go#75804).
set -eu
grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | cut -d' ' -f2); do
		echo "$dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" -fuzzminimizetime 100x "$dir"
	done
done
