#!/bin/sh
# Runs the tracer's and the sampler's live tests on kernels of Debian's and Ubuntu's in QEMU, with the
# fixture library: scripts/test-kernels.sh [-short | -run PATTERN] [PACKAGE...]
# A package is one that holds a kernel or depends on one; linux-image-cloud-amd64
# unless given, which is 6.1 in Debian 12. bullseye:PACKAGE is Debian 11's, 5.10, on which
# processes can only be sampled, and jammy:PACKAGE Ubuntu 22.04's, 5.15. -short takes
# one test of each kind. With CI set, a skipped test is a failure.
set -eu
cd "$(dirname "$0")/.."

tests=$(cd tracer; grep -oh '^func Test[A-Za-z]*' accounts_test.go attach_test.go detach_test.go losses_test.go links_test.go | sed 's/func Test//' | grep -vx OlderKernels | paste -sd '|')
tests="^Test($tests|KernelsOfAProcess|WatchSeesALibraryBeingLoaded|WatchSeesDevices|WatchReportsWhatItMissed)\$"
# A guest has no file system in user space, which all tests of that file serve: they need nothing built.
skip="^($(grep -oh '^func Test[A-Za-z]*' internal/sampler/hung_test.go | sed 's/func //' | paste -sd '|'))\$"
samples=. readings=
case ${1:-} in
-short)
	shift
	readings=50
	tests='^Test(KernelFeatures|NoticeOfMissingFeatures|CapabilitiesSuffice|WatchSeesALibraryBeingLoaded|WatchSeesDevices|WatchReportsWhatItMissed|AttachedLate|'
	tests=$tests'TwoBuildsAtOnce|FollowTracesChildrenOnly|ForkWithoutExec|OtherProcessesMakeNoEvents|Detach|KernelsOfAProcess)$'
	;;
-run)
	tests=$2 samples=$2
	shift 2
	;;
esac
test $# -gt 0 || set -- linux-image-cloud-amd64
kernels=${XDG_CACHE_HOME:-$HOME/.cache}/tt-memtrace/kernels
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# archive NAME FILE: where the archive that ends in NAME is, as this machine's sources have it or
# else FILE, which is the distributions' own account of their archives.
archive() {
	found=$({
		apt-get indextargets --format '$(REPO_URI)'
		sed -n 's/^BaseURI[^:]*: *//p' "/usr/share/python-apt/templates/$2"
	} | grep -m 1 "$1/*$") || {
		echo "no address of the archive $1: not in apt's sources, nor in $2" >&2
		exit 1
	}
	echo "$found"
}

# of_suite NAME: makes apt use another release's archive alone, where the name has one.
of_suite() {
	export APT_CONFIG="$dir/apt.conf"
	echo 'APT::Sandbox::User "root";' >"$APT_CONFIG"
	case $1 in
	bullseye:*)
		source="[signed-by=/usr/share/keyrings/debian-archive-bullseye-security-automatic.gpg] $(archive debian-security Debian.info) bullseye-security main"
		;;
	jammy:*) # Debian has no keys of Ubuntu's: the checksum is in sums
		source="[trusted=yes] $(archive /ubuntu Ubuntu.info) jammy main"
		;;
	*)
		return
		;;
	esac
	apt=$dir/apt-${1%%:*}
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
	echo "deb $source" >"$apt/sources"
	cat >>"$APT_CONFIG" <<-END
		Dir::State::lists "$apt/lists";
		Dir::Cache "$apt/cache";
		Dir::Etc::sourcelist "$apt/sources";
		Dir::Etc::sourceparts "-";
	END
}

# sums are of packages whose archive's keys are not at hand.
sums='ad56f8c442a54d4f5ff2dff010d00321d53e32b543f3a92f3ba4e042d20a71da  linux-image-5.15.0-25-generic_5.15.0-25.25_amd64.deb'

# vmlinuz PACKAGE: the file, downloaded unless it was before.
vmlinuz() {
	of_suite "$1"
	name=${1#*:}
	apt-cache show "$name" >/dev/null 2>&1 || apt-get update -qq >&2
	package=$(apt-cache depends "$name" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	package=${package:-$name}
	if [ ! -e "$kernels/$package" ]; then
		mkdir -p "$dir/deb" "$kernels"
		(cd "$dir/deb" && apt-get download -qq "$package" >&2)
		case $1 in
		jammy:*)
			echo "$sums" | (cd "$dir/deb" && sha256sum --check --quiet --ignore-missing >&2)
			;;
		esac
		dpkg-deb -x "$dir/deb/$package"_*.deb "$dir/deb/x"
		mv "$dir"/deb/x/boot/vmlinuz-* "$kernels/$package"
		rm -r "$dir/deb"
	fi
	echo "$kernels/$package"
}

# The tests and all that they would build, and what that needs to run.
mkdir -p "$dir/root/fixtures" "$dir/root/bin" "$dir/root/proc" "$dir/root/sys" "$dir/root/dev" "$dir/root/tmp"
for package in tracer internal/watch internal/sampler; do
	binary=$dir/root/${package##*/}.test run=$tests
	test $package != internal/sampler || run=$samples
	CGO_ENABLED=0 go test -c -o "$binary" "./$package"
	(
		cd "$package"
		TT_MEMTRACE_TEST_PREBUILT=$dir/root/fixtures TT_MEMTRACE_TEST_BUILD_ONLY=1 "$binary" -test.run "$run" -test.skip "$skip" >"$dir/built" || {
			cat "$dir/built" >&2
			exit 1
		}
	)
done
# shellcheck disable=SC2046
cp --parents -L $(ldd "$dir"/root/fixtures/* | grep -o '/[^ ]*\.so[^ ]*' | sort -u) "$dir/root"
# The loader too is looked for beside the C library, where that is loaded a second time.
cp "$dir"/root/lib64/ld-linux-* "$(dirname "$(find "$dir/root" -name libc.so.6)")"
cp "$(command -v busybox)" "$dir/root/bin/busybox"
cat >"$dir/root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin TT_MEMTRACE_TEST_PREBUILT=/fixtures TT_MEMTRACE_LOAD_READINGS=$readings
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
echo "Linux \$(uname -r)"
case \$(uname -r) in
5.10.*) /sampler.test -test.v -test.run '$samples' -test.skip '$skip' ;;
*) /sampler.test -test.v -test.run '$samples' -test.skip '$skip' && /watch.test -test.v -test.run '$tests' && /tracer.test -test.v -test.run '$tests' ;;
esac
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
