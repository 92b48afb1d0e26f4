#!/bin/sh
# Runs all tests, one package at a time: some trace the whole host. With CI set,
# a skipped test is a failure.
set -eu
results=$(mktemp)
trap 'rm -f "$results"' EXIT
# The evaluator is also tried on the real runtime, where the rig can have it.
if library=$(python3 test/rig/rig.py install --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["library"])'); then
	export TT_MEMTRACE_TEST_LIB="$library"
fi
go tool gotestsum --format "${TEST_FORMAT:-pkgname-and-test-fails}" --jsonfile "$results" -- \
	-p 1 -timeout 18m "$@" ./...
if [ -n "${CI:-}" ] && grep '"Action":"skip"' "$results" | grep -q '"Test":'; then
	echo "these tests were skipped, which fails here:" >&2
	grep '"Action":"skip"' "$results" | grep -o '"Test":"[^"]*"' >&2
	exit 1
fi
