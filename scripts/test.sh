#!/bin/sh
# Runs all tests. Those that trace run one package after the other, as some look at
# the whole host; beside them, on the other core, run those that do not. With CI
# set, a skipped test is a failure. go vet is for make quick and make check.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# The evaluator is also tried on the real runtime, where the rig can have it.
if library=$(python3 test/rig/rig.py install --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["library"])'); then
	export TT_MEMTRACE_TEST_LIB="$library"
fi
TT_MEMTRACE_TEST_PREBUILT=$(scripts/fixtures.sh)
export TT_MEMTRACE_TEST_PREBUILT

# lane NAME PACKAGE... [-- FLAG...]: runs the tests of packages.
lane() {
	name=$1
	shift
	go tool gotestsum --format "${TEST_FORMAT:-pkgname-and-test-fails}" --jsonfile "$dir/$name" -- -p 1 -vet=off -timeout 18m "$@"
}
live='^tt-memtrace/(sampler|tracer|tracer/(discover|inspect|memory|proc|watch)|test/(cli|e2e|packaging|prometheus|rig))$'
packages=$(go list ./...)
# shellcheck disable=SC2046
lane pure "$@" $(echo "$packages" | grep -vE "$live") &
pure=$!
failed=0
# shellcheck disable=SC2046
lane live -count 1 "$@" $(echo "$packages" | grep -E "$live") || failed=$?
wait $pure || failed=$?
if [ -n "${CI:-}" ] && grep -h '"Action":"skip"' "$dir/pure" "$dir/live" | grep -q '"Test":'; then
	echo "these tests were skipped, which fails here:" >&2
	grep -h '"Action":"skip"' "$dir/pure" "$dir/live" | grep -o '"Test":"[^"]*"' >&2
	failed=1
fi
exit $failed
