#!/bin/sh
# Runs all tests. Those that look at the whole host run one package after the other; beside
# them, on the other core, run those that trace nothing, or only processes of their own. With
# CI set, a skipped test is a failure. go vet is for make quick and make check.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# The evaluator is also tried on the real runtime, where the rig can have it.
if library=$(python3 test/rig/rig.py install --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["library"])'); then
	export TT_MEMTRACE_TEST_LIB="$library"
fi
TT_MEMTRACE_TEST_PREBUILT=$(scripts/fixtures.sh)
export TT_MEMTRACE_TEST_PREBUILT

# lane NAME PACKAGES FLAG...: runs the tests of packages. A few that fail run again,
# twice at most: what passes then is named at the end, as a defect that only some runs show.
lane() {
	name=$1 packages=$2
	shift 2
	go tool gotestsum --format "${TEST_FORMAT:-pkgname-and-test-fails}" --jsonfile "$dir/$name" \
		--rerun-fails=2 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-report "$dir/$name.again" \
		--packages "$packages" -- -p 1 -vet=off -timeout 18m "$@"
}
host='^tt-memtrace/(tracer|internal/(discover|inspect|watch)|test/(cli|e2e|packaging))$'
own='^tt-memtrace/(internal/(sampler|memory|proc)|test/(prometheus|rig))$'
# Those of the first that trace only processes of their own, and take long.
apart='RandomHistories|RandomLives|Ways|AccountsEqualTheRuntimes|SampledEqualsTheRuntimes|ServerHasTheSnapshot|ReplayIsTheSameAsLive'
apart="^Test($apart|CircularBuffersEqualTheRuntimes|ProgramsOutliveTheirMesh|AttachedLateKnowsPrograms|AttachedLateShowsAll|PagedOut)\$"
all=$(go list ./...)
list() { echo "$all" | grep "$@" | tr '\n' ' '; }
{
	lane pure "$(list -vE "$host|$own")" "$@" || code=$?
	lane own "$(list -E "$own")" -count 1 "$@" || code=$?
	lane apart "./tracer ./test/e2e" -count 1 -run "$apart" "$@" || code=$?
	exit ${code:-0}
} &
others=$!
failed=0
lane host "$(list -E "$host")" -count 1 -skip "$apart" "$@" || failed=$?
wait $others || failed=$?
if cat "$dir"/*.again 2>/dev/null | grep -q .; then
	echo "these tests failed and ran again (tests, failures); each has a defect, in the test or in what it tests:" >&2
	cat "$dir"/*.again >&2
fi
if [ -n "${CI:-}" ] && grep -h '"Action":"skip"' "$dir"/* | grep -q '"Test":'; then
	echo "these tests were skipped, which fails here:" >&2
	grep -h '"Action":"skip"' "$dir"/* | grep -o '"Test":"[^"]*"' >&2
	failed=1
fi
exit $failed
