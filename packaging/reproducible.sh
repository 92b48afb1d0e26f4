#!/bin/sh
# Builds HEAD twice in environments as different as one machine allows (clone,
# directory, cache, home, time zone, umask and, as root, host name) and compares.
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir" && rm -rf "$dir"' EXIT
modules=$(go env GOMODCACHE)

git clone --quiet . "$dir/a"
git clone --quiet --depth 1 "file://$PWD" "$dir/somewhere else"
(cd "$dir/a" && packaging/build.sh)
(
	cd "$dir/somewhere else"
	umask 077
	export HOME="$dir/home" GOCACHE="$dir/cache" GOMODCACHE="$modules" TZ=Asia/Tokyo LC_ALL=C.UTF-8 GOMAXPROCS=1 GOFLAGS=-buildvcs=true
	if [ "$(id -u)" = 0 ]; then
		unshare --uts sh -c 'hostname elsewhere && packaging/build.sh'
	else
		packaging/build.sh
	fi
)
cmp "$dir/a/dist/SHA256SUMS" "$dir/somewhere else/dist/SHA256SUMS"
if ldd "$dir/a/dist/tt-memtrace" 2>/dev/null; then
	echo "the program is not static" >&2
	exit 1
fi
cat "$dir/a/dist/SHA256SUMS"
