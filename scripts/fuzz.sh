#!/bin/sh
# Gives every fuzz target of the tree some time: scripts/fuzz.sh 5s
set -eu
grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | cut -d' ' -f2); do
		echo "$dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$dir"
	done
done
