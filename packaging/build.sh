#!/bin/sh
# Builds the binary, manual pages, completions and packages into a directory,
# reproducibly: a commit always yields the same bytes.
#
#   packaging/build.sh [DIR]            default: dist
#   VERSION=1.2.3 packaging/build.sh    overrides the commit's version
set -eu
cd "$(dirname "$0")/.."
DIST=${1:-dist}
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
VERSION=${VERSION:-$(packaging/version.sh)}
# The files must not depend on the time, directory, checkout or machine.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export DIST VERSION SOURCE_DATE_EPOCH CGO_ENABLED=0 GOOS=linux GOARCH=amd64 GOAMD64=v1 GOFLAGS= LC_ALL=C TZ=UTC
umask 022

rm -rf "$DIST"
mkdir -p "$DIST/man" "$DIST/completions"
go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.release=$VERSION" -o "$DIST/tt-memtrace" ./cmd/tt-memtrace

"$DIST/tt-memtrace" man "$DIST/man"
gzip -9n "$DIST"/man/*.1
"$DIST/tt-memtrace" completion bash >"$DIST/completions/tt-memtrace.bash"
"$DIST/tt-memtrace" completion zsh >"$DIST/completions/_tt-memtrace"
"$DIST/tt-memtrace" completion fish >"$DIST/completions/tt-memtrace.fish"

packaging/licenses.sh | gzip -9n >"$DIST/third-party-licenses.txt.gz"
# The bill of materials: which modules, in which versions, are linked into the program.
go -C tools run ./sbom "$(realpath "$DIST/tt-memtrace")" "$VERSION" ../internal/report/page/package-lock.json echarts zrender tslib >"$DIST/tt-memtrace.cdx.json"
# Debian's form of a changelog; what changed is in CHANGELOG.md.
printf 'tt-memtrace (%s) unstable; urgency=medium\n\n  * Built from this version; CHANGELOG.md in the source has what changed.\n\n -- The tt-memtrace authors <tt-memtrace@localhost>  %s\n' \
	"$VERSION" "$(date -uR -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$DIST/changelog.gz"

for packager in deb rpm; do
	go run "$nfpm" package --config packaging/nfpm.yaml --packager "$packager" --target "$DIST/"
done
(cd "$DIST" && sha256sum tt-memtrace tt-memtrace.cdx.json ./*.deb ./*.rpm >SHA256SUMS)
