#!/bin/sh
# Writes the licences and notices of everything that is linked into the binary: Go, and
# each module. Fails if a module has none. The modules are those that Go has downloaded.
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C CGO_ENABLED=0 GOOS=linux GOARCH=amd64

one() { # one NAME DIR
	files=$(find "$2" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) ! -name '*.go' | sort)
	test -n "$files" || {
		echo "$1 has no licence in $2" >&2
		return 1
	}
	for file in $files; do
		printf '\n\n==== %s: %s\n\n' "$1" "${file##*/}"
		cat "$file"
	done
}

echo "The modules that are linked into tt-memtrace, and their licences."
printf '\n\n==== in the HTML report\n\n'
sed '/\*\//q' internal/report/page/charts.js
one "$(go env GOVERSION)" "$(go env GOROOT)"
modules=$(go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/tt-memtrace | sort -u)
echo "$modules" | while read -r path version dir; do
	one "$path $version" "$dir"
done
