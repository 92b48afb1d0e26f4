#!/bin/sh
# Builds the program, what belongs to it and the packages, into a folder: the
# same bytes for the same commit, whoever builds it and wherever.
#
#   packaging/build.sh [DIR]            dist unless given
#   VERSION=1.2.3 packaging/build.sh    another version than the commit's own
set -eu
cd "$(dirname "$0")/.."
DIST=${1:-dist}
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
VERSION=${VERSION:-$(packaging/version.sh)}
# Nothing of the time, the folder, the checkout or the machine goes into the files.
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

for packager in deb rpm; do
	go run "$nfpm" package --config packaging/nfpm.yaml --packager "$packager" --target "$DIST/"
done
(cd "$DIST" && sha256sum tt-memtrace ./*.deb ./*.rpm >SHA256SUMS)
