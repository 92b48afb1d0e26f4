#!/bin/sh
# Runs the tracer's live tests on kernels of Debian's in QEMU, with the fixture
# library: scripts/test-kernels.sh [-short | -run PATTERN] [PACKAGE...]
# A package is one that holds a kernel or depends on one; linux-image-cloud-amd64
# unless given, which is 6.1 in Debian 12. -short takes one test of each kind.
# With CI set, a skipped test is a failure.
set -eu
cd "$(dirname "$0")/.."

tests=$(grep -oh '^func Test[A-Za-z]*' tracer/live_test.go tracer/links_test.go | sed 's/func Test//' | grep -vx OlderKernels | paste -sd '|')
tests="^Test($tests|KernelsOfAProcess|WatchSeesALibraryBeingLoaded|WatchReportsWhatItMissed)\$"
case ${1:-} in
-short)
	shift
	tests='^Test(HostKernelFeatures|NoticeOfMissingFeatures|CapabilitiesSuffice|WatchSeesALibraryBeingLoaded|WatchReportsWhatItMissed|AttachedLate|'
	tests=$tests'TwoBuildsAtOnce|FollowTracesChildrenOnly|ForkWithoutExec|OtherProcessesMakeNoEvents|Detach|KernelsOfAProcess)$'
	;;
-run)
	tests=$2
	shift 2
	;;
esac
test $# -gt 0 || set -- linux-image-cloud-amd64
kernels=${XDG_CACHE_HOME:-$HOME/.cache}/tt-memtrace/kernels
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# vmlinuz PACKAGE: the file, downloaded unless it was before.
vmlinuz() {
	apt-cache show "$1" >/dev/null 2>&1 || apt-get update -qq >&2
	package=$(apt-cache depends "$1" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	package=${package:-$1}
	if [ ! -e "$kernels/$package" ]; then
		mkdir -p "$dir/deb" "$kernels"
		(cd "$dir/deb" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2)
		dpkg-deb -x "$dir/deb/$package"_*.deb "$dir/deb/x"
		mv "$dir"/deb/x/boot/vmlinuz-* "$kernels/$package"
		rm -r "$dir/deb"
	fi
	echo "$kernels/$package"
}

# The tests and all that they would build, and what that needs to run.
mkdir -p "$dir/root/fixtures" "$dir/root/bin" "$dir/root/proc" "$dir/root/sys" "$dir/root/dev" "$dir/root/tmp"
for package in tracer tracer/watch; do
	binary=$dir/root/${package##*/}.test
	CGO_ENABLED=0 go test -c -o "$binary" "./$package"
	(
		cd "$package"
		TT_MEMTRACE_TEST_PREBUILT=$dir/root/fixtures TT_MEMTRACE_TEST_BUILD_ONLY=1 "$binary" -test.run "$tests" >"$dir/built" || {
			cat "$dir/built" >&2
			exit 1
		}
	)
done
# shellcheck disable=SC2046
cp --parents -L $(ldd "$dir"/root/fixtures/* | grep -o '/[^ ]*\.so[^ ]*' | sort -u) "$dir/root"
cp "$(command -v busybox)" "$dir/root/bin/busybox"
cat >"$dir/root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin TT_MEMTRACE_TEST_PREBUILT=/fixtures
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
echo "Linux \$(uname -r)"
/watch.test -test.v -test.run '$tests' && /tracer.test -test.v -test.run '$tests'
echo "exit code \$?"
poweroff -f
END
chmod +x "$dir/root/init"
(cd "$dir/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$dir/initrd"

for name in "$@"; do
	kernel=$(vmlinuz "$name")
	# KVM is not there in most machines that test. With a thread for each CPU a kernel
	# that patches its own code may die of it, which real machines see to.
	timeout 540 qemu-system-x86_64 -accel tcg,thread=single -smp 2 -m 1G -display none -monitor none -no-reboot -serial stdio \
		-kernel "$kernel" -initrd "$dir/initrd" -append 'console=ttyS0 quiet panic=-1' </dev/null |
		tr -d '\r' | tee "$dir/console" | grep --line-buffered -E '^Linux |^ *---|^ +[a-z_]+\.go:|^panic|^exit code' || true
	if ! grep -qx 'exit code 0' "$dir/console"; then
		echo "the tests failed on $name; the console's end:" >&2
		tail -n 40 "$dir/console" >&2
		exit 1
	fi
	if [ -n "${CI:-}" ] && grep -q -e '--- SKIP' "$dir/console"; then
		echo "a test was skipped on $name, which fails here" >&2
		exit 1
	fi
done
