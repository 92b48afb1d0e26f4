#!/bin/sh
# Called with "remove" (deb) or 0 (rpm) when it is not an upgrade.
set -e
case ${1:-} in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl --no-reload disable --now tt-memtrace.service
	elif command -v systemctl >/dev/null; then
		systemctl --no-reload disable tt-memtrace.service
	fi
	;;
esac
