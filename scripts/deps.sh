#!/bin/sh
# Installs what the tests (test), the checks (check), the benchmark (bench), the
# tests of packages (packages) or those on other kernels (kernels) need on Debian
# or Ubuntu.
# Without root or apt it says what is missing and lets the tests skip.
set -eu

packages=
need() { # need COMMAND PACKAGE: the package, unless the command is there
	command -v "$1" >/dev/null 2>&1 || packages="$packages $2"
}
for what in "$@"; do
	case $what in
	test)
		need python3 python3
		need g++ g++
		need clang++ clang
		need tmux tmux
		need setcap libcap2-bin
		need prometheus prometheus
		need node nodejs
		need chromium chromium
		need podman podman
		need runc runc
		need catatonit catatonit
		need systemd-analyze systemd
		need riscv64-unknown-elf-as binutils-riscv64-unknown-elf
		need zstd zstd
		;;
	bench)
		need bpftrace bpftrace
		;;
	packages)
		need mmdebstrap mmdebstrap
		need systemd-nspawn systemd-container
		need rpm rpm
		need lintian lintian
		need podman podman
		need runc runc
		need catatonit catatonit
		;;
	kernels)
		need g++ g++
		need qemu-system-x86_64 qemu-system-x86
		need busybox busybox-static
		need cpio cpio
		test -e /usr/share/python-apt/templates/Ubuntu.info || packages="$packages python-apt-common"
		;;
	check)
		# Another compiler would make other bytes of the same programs.
		need clang-14 clang-14
		need llvm-strip-14 llvm-14
		need clang-format-14 clang-format-14
		test -e /usr/include/bpf/bpf_helpers.h || packages="$packages libbpf-dev"
		test -e /usr/include/linux/bpf.h || packages="$packages linux-libc-dev"
		need gcc gcc
		;;
	esac
done
test -n "$packages" || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "installing$packages" >&2
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	# shellcheck disable=SC2086
	apt-get install -y -qq --no-install-recommends $packages >/dev/null
	case " $packages " in
	*" prometheus "*) # its program is wanted, not its service
		test ! -d /run/systemd/system || systemctl disable --quiet --now prometheus
		;;
	esac
else
	echo "not installed, and this is not root on Debian or Ubuntu:$packages" >&2
fi
