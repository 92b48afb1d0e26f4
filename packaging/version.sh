#!/bin/sh
# Prints the version of HEAD in the sort order of Debian and RPM: 1.2.3 for the tag
# v1.2.3, 1.2.3+4.gabc... for the fourth commit after it, and 0.0.0+TIME.gabc...
# without any tag.
set -eu
if tag=$(git describe --tags --match 'v[0-9]*' --abbrev=12 2>/dev/null); then
	version=$(echo "${tag#v}" | sed 's/-\([0-9]*\)-g/+\1.g/; s/-/~/g')
else
	version=0.0.0+$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d%H%M%S).g$(git rev-parse --short=12 HEAD)
fi
# Uncommitted changes belong to no version.
test -z "$(git status --porcelain)" || version=$version.dirty
echo "$version"
