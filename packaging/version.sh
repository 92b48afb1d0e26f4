#!/bin/sh
# Prints the version of HEAD in the sort order of Debian and RPM: 1.2.3 for the tag
# v1.2.3, 1.2.3+4.gabc... for the fourth commit after it. Before the first tag it is
# 1.2.3~TIME.gabc..., which comes before 1.2.3, the newest version in CHANGELOG.md.
set -eu
cd "$(dirname "$0")/.."
if tag=$(git describe --tags --match 'v[0-9]*' --abbrev=12 2>/dev/null); then
	version=$(echo "${tag#v}" | sed 's/-\([0-9]*\)-g/+\1.g/; s/-/~/g')
else
	version=$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
	test -n "$version" || {
		echo "CHANGELOG.md names no version" >&2
		exit 1
	}
	version=$version~$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d%H%M%S).g$(git rev-parse --short=12 HEAD)
fi
# Uncommitted changes belong to no version.
test -z "$(git status --porcelain)" || version=$version.dirty
echo "$version"
