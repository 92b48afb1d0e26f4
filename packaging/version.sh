#!/bin/sh
# The version of the commit that is checked out, as Debian and RPM sort it: 1.2.3
# of a tag v1.2.3, 1.2.3+4.gabc... of the fourth commit after it, and, where
# there is no tag, 0.0.0+TIME.gabc...
set -eu
if tag=$(git describe --tags --match 'v[0-9]*' --abbrev=12 2>/dev/null); then
	version=$(echo "${tag#v}" | sed 's/-\([0-9]*\)-g/+\1.g/; s/-/~/g')
else
	version=0.0.0+$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d%H%M%S).g$(git rev-parse --short=12 HEAD)
fi
# What is not committed is part of no version.
test -z "$(git status --porcelain)" || version=$version.dirty
echo "$version"
