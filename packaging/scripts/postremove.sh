#!/bin/sh
# Called with "remove" or "purge" (deb) or 0 (rpm) when it is not an upgrade.
set -e
case ${1:-} in
remove | purge | 0)
	# Recordings stay; an unused directory does not.
	if rmdir /var/lib/private/tt-memtrace 2>/dev/null; then
		rm -f /var/lib/tt-memtrace
	fi
	;;
esac
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
