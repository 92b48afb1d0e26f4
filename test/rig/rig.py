#!/usr/bin/env python3
"""Runs the real ttnn runtime on mock chips, so that tests need no hardware.

  rig.py install [--release R]              install a release once, print its Python's path
  rig.py python VERSION                     print the path of a Python of this version, as JSON
  rig.py cluster NAME                       print a mock cluster descriptor
  rig.py run [options] [--] SCRIPT ARGS...  run a script (or a program) on a mock cluster, clean up after it
  rig.py env [options]                      prepare such a run for somebody else, as JSON
  rig.py sweep                              remove what killed runs have left

A release is one of ttnn, or jax-R: JAX with release R of jax-tt-plugin, which has the runtime linked in.
It is installed for the first Python that is found, or for the one in $TT_MEMTRACE_PYTHON, such as 3.12.
Releases are kept under $TT_MEMTRACE_RIG, else $XDG_CACHE_HOME/tt-memtrace/rig, else ~/.cache/tt-memtrace/rig.
Exit code 77 means that this machine lacks something the rig needs; the message says what.
"""

import argparse
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # this folder belongs to the source tree
import mock_cluster  # noqa: E402
import real_compiler  # noqa: E402

DEFAULT_RELEASE = "0.81.1"
UNAVAILABLE = 77  # what automake calls a skipped test

HERE = os.path.dirname(os.path.abspath(__file__))
COMPILER = os.path.join(HERE, "kernel_compiler.py")
ASSEMBLER = "riscv64-unknown-elf-as"
ASSEMBLER_PACKAGE = "binutils-riscv64-unknown-elf"
# Unpacks the real kernel compiler. The program and its Debian package have the same name.
UNPACKER = "zstd"

# The wheels are built for these only.
PYTHON_VERSIONS = ((3, 10), (3, 12))

JAX_PYTHON_VERSIONS = ((3, 12), (3, 13))
JAX_VERSION = "0.12.*"

# A run's chips get unique ids of its own, for the runtime names files in /dev/shm after them: concurrent
# runs then keep separate accounts, and what a run leaves can be distinguished from what others own.
# An id is this tag, the owner's PID, a random number and the chip, from the top bit down (16, 22, 18, 8).
CHIP_ID_TAG = 0x7474
RUN_DIR_PREFIX = "tt-memtrace-rig-"

SIMULATOR = "libttsim.so"


class Unavailable(Exception):
    """This machine lacks something that the rig cannot install."""


def say(message):
    print(f"rig: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(what):
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: done in {time.monotonic() - start:.1f} s")


def root_dir():
    configured = os.environ.get("TT_MEMTRACE_RIG")
    if configured:
        return os.path.abspath(configured)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "tt-memtrace", "rig")


# ---------------------------------------------------------------------------------------------- install


class Release:
    """One installed release. Its marker file is written last: without it the folder is a failed attempt."""

    MARKER = "rig.json"

    def __init__(self, version):
        found = re.fullmatch(r"(jax-)?([0-9][0-9A-Za-z.]*)", version)
        if not found:
            raise SystemExit(f"rig: {version!r} is no release of ttnn, and no jax-RELEASE")
        self.version = version
        self.jax = bool(found.group(1))
        self.packages = [f"jax-tt-plugin=={found.group(2)}", f"jax=={JAX_VERSION}"] if self.jax else [f"ttnn=={version}"]
        wanted = os.environ.get("TT_MEMTRACE_PYTHON")
        self.pythons = JAX_PYTHON_VERSIONS if self.jax else (python_version(wanted),) if wanted else PYTHON_VERSIONS
        name = version if self.jax else f"ttnn-{version}" + (f"-python{wanted}" if wanted else "")
        self.dir = os.path.join(root_dir(), name)
        self.python = os.path.join(self.dir, "bin", "python")
        self.marker = os.path.join(self.dir, self.MARKER)

    def read(self):
        """The marker's content, or None when there is no complete install."""
        try:
            with open(self.marker) as file:
                info = json.load(file)
            # The base interpreter may have been uninstalled since, which leaves a dangling link.
            whole = os.path.exists(self.python) and os.path.exists(info["library"])
        except (OSError, ValueError, KeyError):
            return None
        return info if whole and info.get("compiler") == compiler_version() else None

    def kernels(self, compiler):
        """Compiled kernels: kept per release, and per version of the compiler that made them."""
        return os.path.join(root_dir(), f"kernels-{self.version}-{compiler}")


def compiler_version():
    with open(COMPILER, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]


@contextlib.contextmanager
def locked(path, what):
    """Holds the lock of what is installed at a path; yields its file."""
    os.makedirs(root_dir(), exist_ok=True)
    with open(path + ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress(f"waiting for another install of {what}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def install(version):
    """Make sure that a release is there and return (Release, its marker's content)."""
    release = Release(version)
    check_platform()
    if not release.jax:  # which has a compiler of its own
        check_program(ASSEMBLER, ASSEMBLER_PACKAGE)
    info = release.read()
    if info:
        return release, info
    with locked(release.dir, release.packages[0]) as lock:
        info = release.read()
        if not info:
            info = install_locked(release, lock)
    return release, info


def install_locked(release, lock):
    if not os.path.exists(release.marker) or not os.path.exists(release.python):
        shutil.rmtree(release.dir, ignore_errors=True)
        base = find_python(release.pythons)
        log = release.dir + ".log"
        with progress(f"installing {release.packages[0]} into {release.dir} for {base}"), open(log, "w") as out:
            try:
                # They inherit the lock: should this process be killed, it is theirs until they have ended too.
                make_environment(base, release, out, lock)
                pip_install(release, out, log, lock)
            except BaseException:
                shutil.rmtree(release.dir, ignore_errors=True)
                raise
        os.unlink(log)
    # Rewriting the marker also brings an install up to date whose stand-in compiler is an older one.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(release.marker)
    site = site_packages(release)
    if not release.jax:
        install_compiler(release, site)
    info = {
        "release": release.version,
        "python": release.python,
        "site_packages": site,
        "library": find_library(release, site),
        "compiler": compiler_version(),
    }
    unfinished = release.marker + ".new"
    with open(unfinished, "w") as file:
        json.dump(info, file, indent=1)
    os.replace(unfinished, release.marker)
    return info


def check_platform():
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable(f"ttnn's wheels are for x86_64 Linux; this is {platform.machine()} {sys.platform}")
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:
        libc = ""
    found = re.fullmatch(r"glibc (\d+)\.(\d+)", libc)
    if not found or tuple(map(int, found.groups())) < (2, 34):
        raise Unavailable(f"ttnn's wheels need glibc 2.34 or later; this system has {libc or 'another libc'}")


def can_apt():
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(*packages):
    """Install Debian packages; True when that worked."""
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    with progress(f"apt-get install {' '.join(packages)}"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-qq", *command], env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno()
            )
            # A source that cannot be reached does not matter when the package comes from another one.
            if done.returncode and command[0] == "install":
                return False
    return True


def check_program(name, package):
    if shutil.which(name):
        return
    if can_apt() and apt_install(package) and shutil.which(name):
        return
    raise Unavailable(f"{name} is not installed (on Debian and Ubuntu: apt-get install {package})")


def python_candidates(versions):
    names = [f"python{major}.{minor}" for major, minor in versions]
    for name in names:
        found = shutil.which(name)
        if found:
            yield found
    pyenv = os.environ.get("PYENV_ROOT") or os.path.join(os.path.expanduser("~"), ".pyenv")
    for major, minor in versions:
        yield from sorted(glob.glob(os.path.join(pyenv, "versions", f"{major}.{minor}.*", "bin", "python3")))
    if shutil.which("uv"):
        for major, minor in versions:
            found = subprocess.run(
                ["uv", "python", "find", "--no-python-downloads", f"{major}.{minor}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if found.returncode == 0:
                yield found.stdout.strip()
    yield sys.executable


def python_version(text):
    """A version that the wheels are built for, as 3.12 or so names it."""
    for version in PYTHON_VERSIONS:
        if text == "{}.{}".format(*version):
            return version
    raise SystemExit(f"rig: there are no wheels for Python {text}")


def usable_python(path, versions):
    """Whether this interpreter runs, is of one of the versions and can make virtual environments.

    Only running it shows: a pyenv shim is on PATH for versions that are not active, and Debian ships venv
    and ensurepip apart from the interpreter.
    """
    probe = "import sys, venv, ensurepip; print(sys.version_info[0], sys.version_info[1])"
    try:
        done = subprocess.run(
            [path, "-I", "-c", probe],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return False
    return done.returncode == 0 and tuple(map(int, done.stdout.split())) in versions


def find_python(versions):
    for path in python_candidates(versions):
        if usable_python(path, versions):
            return path
    if can_apt():
        for major, minor in reversed(versions):
            name = f"python{major}.{minor}"
            if apt_install(name, name + "-venv"):
                path = shutil.which(name)
                if path and usable_python(path, versions):
                    return path
    wanted = " or ".join(f"{major}.{minor}" for major, minor in versions)
    raise Unavailable(f"no Python {wanted} with venv found (on PATH, under pyenv, or by uv): the wheels need one")


def make_environment(base, release, out, lock):
    # An environment cannot be moved, so it is made in place; the marker says that it is whole. -I keeps
    # PYTHON* variables out, which may belong to another environment.
    subprocess.run(
        [base, "-I", "-m", "venv", release.dir], check=True, stdout=out, stderr=out, pass_fds=[lock.fileno()]
    )


# What pip prints when the package index is out of reach, rather than without the release.
OFFLINE = re.compile(
    r"Failed to establish a new connection|name resolution|Network is unreachable|Connection refused|"
    r"ConnectTimeoutError|ReadTimeoutError|ProxyError|SSLError|Could not fetch URL|from versions: none"
)


def pip_install(release, out, log, lock):
    first = release.packages[0]
    pip(release, first, out, log, lock, "install", "--only-binary=" + first.split("==")[0], "--prefer-binary", *release.packages)


def pip(release, what, out, log, lock, *args):
    command = [release.python, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", *args]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[lock.fileno()])
    if done.returncode == 0:
        return
    out.flush()
    with open(log, errors="replace") as file:
        text = file.read()
    sys.stderr.write("".join(line + "\n" for line in text.splitlines()[-15:]))
    if OFFLINE.search(text):
        raise Unavailable(f"the package index is out of reach, and {what} is not installed yet")
    raise SystemExit(f"rig: pip could not install {what}; its whole output is in {log}")


def install_real_compiler(release):
    """Make sure that the real kernel compiler is there, once for all releases, and return its folder."""
    folder = os.path.join(root_dir(), f"compiler-{real_compiler.VERSION}")
    if os.path.exists(folder):
        return folder
    check_program(UNPACKER, UNPACKER)
    what = f"{real_compiler.WHEEL} {real_compiler.VERSION}"
    with locked(folder, what) as lock:
        if os.path.exists(folder):
            return folder
        log = folder + ".log"
        with (
            tempfile.TemporaryDirectory(prefix="unpacking-", dir=root_dir()) as temporary,
            progress(f"installing the kernel compiler of {what} into {folder}"),
            open(log, "w") as out,
        ):
            wanted = f"{real_compiler.WHEEL}=={real_compiler.VERSION}"
            pip(release, what, out, log, lock, "download", "--dest", temporary, *real_compiler.WANTED, wanted)
            (wheel,) = glob.glob(os.path.join(temporary, "*.whl"))
            os.rename(real_compiler.unpack(wheel, temporary), folder)
        os.unlink(log)
    return folder


def site_packages(release):
    found = glob.glob(os.path.join(release.dir, "lib", "python3.*", "site-packages"))
    if len(found) != 1:
        raise SystemExit(f"rig: {release.dir} is no virtual environment")
    return found[0]


def install_compiler(release, site):
    # The runtime starts it hundreds of times, so it must not go through "env python3", which may be a slow
    # wrapper script. A #! line cannot hold every path, though.
    interpreter = f"{os.path.realpath(release.python)} -IS"
    if len(interpreter) > 120 or len(interpreter.split()) != 2:
        interpreter = "/usr/bin/env python3"
    with open(COMPILER) as file:
        source = file.read()
    target = os.path.join(site, "ttnn", "runtime", "sfpi", "compiler", "bin", "riscv-tt-elf-g++")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    unfinished = target + ".new"
    with open(unfinished, "w") as file:
        file.write(f"#!{interpreter}\n" + source.split("\n", 1)[1])
    os.chmod(unfinished, 0o755)
    os.replace(unfinished, target)


def find_library(release, site):
    """The library that holds the runtime: its own from 0.62.0 on, part of ttnn's before; part of JAX's plugin."""
    names = ["jax_plugins/libtt/libtt.so"] if release.jax else ["ttnn/build/lib/libtt_metal.so", "ttnn/build/lib/_ttnncpp.so"]
    for name in names:
        path = os.path.join(site, name)
        if os.path.exists(path):
            return path
    raise SystemExit(f"rig: no runtime library under {site}")


# -------------------------------------------------------------------------------------------------- runs


class Prepared:
    """The folder, environment and chip ids of one run. What it leaves behind is known by name.

    With real, kernels are compiled by the real compiler. With simulator, the chips are those of the simulator in that
    folder, which have ids of its own: runs on it share them.
    """

    def __init__(
        self, version, cluster, slow_dispatch=False, first_chip_id=None, owner=None, verbose=False, real=False, simulator=None
    ):
        sweep()
        release, info = install(version)
        self.python = release.python
        self.library = info["library"]
        self.release = version
        self.cluster = cluster
        owner = owner or os.getpid()
        if first_chip_id is None:
            first_chip_id = CHIP_ID_TAG << 48 | owner << 26 | secrets.randbelow(1 << 18) << 8
        self.chips = {} if simulator else mock_cluster.chip_ids(cluster, first_chip_id)
        self.dir = tempfile.mkdtemp(prefix=f"{RUN_DIR_PREFIX}{owner}-")
        compiler = install_real_compiler(release) if real or simulator else None
        kernels = release.kernels(os.path.basename(compiler) if compiler else compiler_version())
        os.makedirs(kernels, exist_ok=True)
        level = "INFO" if verbose else "FATAL"
        self.env = {
            "TT_METAL_CACHE": kernels,
            "TT_METAL_LOGS_PATH": self.dir,
            "TT_METAL_LOGGER_LEVEL": level,
            "TT_LOGGER_LEVEL": level,
            "LOGURU_LEVEL": level.replace("FATAL", "ERROR"),
            # MPI, which the runtime initialises, would leave 16 MiB in /dev/shm and a folder in /tmp.
            "OMPI_MCA_btl_sm_backing_directory": self.dir,
            "TMPDIR": self.dir,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.path.dirname(self.python) + os.pathsep + os.environ.get("PATH", os.defpath),
        }
        if simulator:
            self.env["TT_METAL_SIMULATOR"] = os.path.join(os.path.abspath(simulator), SIMULATOR)
            self.env["TT_METAL_DISABLE_SFPLOADMACRO"] = "1"  # an instruction that simulators need not know
        else:
            descriptor = os.path.join(self.dir, "cluster.yaml")
            with open(descriptor, "w") as file:
                file.write(mock_cluster.render(cluster, first_chip_id))
            self.env["TT_METAL_MOCK_CLUSTER_DESC_PATH"] = descriptor
        if compiler:
            root = os.path.join(root_dir(), f"root-{version}-{os.path.basename(compiler)}")
            real_compiler.runtime_root(root, compiler, os.path.join(info["site_packages"], "ttnn"))
            self.env["TT_METAL_RUNTIME_ROOT"] = root
        if slow_dispatch:
            self.env["TT_METAL_SLOW_DISPATCH_MODE"] = "1"
            if version.startswith("0.67."):  # crashes in its inspector
                self.env["TT_METAL_INSPECTOR"] = "0"

    def files(self):
        """Everything to remove after the run."""
        return [self.dir] + [shared_memory(chip) for chip in self.chips.values()]

    def remove(self):
        for path in self.files():
            remove(path)

    def describe(self):
        return {
            "release": self.release,
            "cluster": self.cluster,
            "python": self.python,
            "library": self.library,
            "dir": self.dir,
            "chips": self.chips,
            "env": self.env,
            "files": self.files(),
        }


def simulator_dir(path):
    """A folder with a simulator's library and the description of its chips."""
    for name in (SIMULATOR, "soc_descriptor.yaml"):
        if not os.path.exists(os.path.join(path, name)):
            raise SystemExit(f"rig: {path} has no {name}")
    return path


def shared_memory(chip_id):
    return f"/dev/shm/tt_device_{chip_id}_memory"


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def leftovers():
    """What runs have left whose owner is gone: it was killed before it could clean up."""
    for path in glob.glob(os.path.join(tempfile.gettempdir(), RUN_DIR_PREFIX + "*")):
        found = re.fullmatch(re.escape(RUN_DIR_PREFIX) + r"(\d+)-.*", os.path.basename(path))
        if found:
            yield path, int(found.group(1))
    for path in glob.glob(shared_memory("*")):
        found = re.fullmatch(r"tt_device_(\d+)_memory", os.path.basename(path))
        if found and int(found.group(1)) >> 48 == CHIP_ID_TAG:
            yield path, int(found.group(1)) >> 26 & (1 << 22) - 1


def sweep():
    removed = []
    for path, owner in leftovers():
        try:
            mine = os.stat(path).st_uid == os.geteuid()
        except FileNotFoundError:
            continue
        if mine and not is_alive(owner):
            remove(path)
            removed.append(path)
    return removed


FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run(prepared, argv):
    """Run argv to its end, passing signals on; returns an exit code as a shell would."""
    env = dict(os.environ, **prepared.env)
    if argv[0].endswith(".py"):
        argv = [prepared.python, *argv]
    child = None
    pending = []

    def forward(number, _frame):
        if child is None:
            pending.append(number)
        elif child.poll() is None:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        try:
            child = subprocess.Popen(argv, env=env)
        except OSError as error:
            say(f"{argv[0]}: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        for number in pending:
            child.send_signal(number)
        code = child.wait()
        return 128 - code if code < 0 else code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------ command line


def parser():
    top = argparse.ArgumentParser(prog="rig.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True

    sub = commands.add_parser("install", help="install a release once, print its Python's path")
    sub.add_argument("--release", default=DEFAULT_RELEASE)
    sub.add_argument("--json", action="store_true", help="print the runtime library's path too, as JSON")

    sub = commands.add_parser("python", help="print the path of a Python of this version, as JSON")
    sub.add_argument("version", type=python_version)

    sub = commands.add_parser("cluster", help="print a mock cluster descriptor")
    sub.add_argument("name", choices=list(mock_cluster.CLUSTERS))

    for name, text in (("run", "run a script or program on a mock cluster"), ("env", "prepare a run, as JSON")):
        sub = commands.add_parser(name, help=text)
        sub.add_argument("--release", default=DEFAULT_RELEASE)
        chips = sub.add_mutually_exclusive_group(required=True)
        chips.add_argument("--cluster", choices=list(mock_cluster.CLUSTERS))
        chips.add_argument("--simulator", metavar="DIR", type=simulator_dir, help="run on the simulator in this folder")
        sub.add_argument("--real-kernels", action="store_true", help="compile kernels with the real compiler")
        sub.add_argument("--slow-dispatch", action="store_true")
        sub.add_argument("--first-chip-id", type=int, help="unique id of chip 0, for runs that share chips")
        sub.add_argument("--verbose", action="store_true", help="let the runtime log")
        if name == "run":
            sub.add_argument("argv", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS...")
        else:
            sub.add_argument("--owner", type=int, help="PID that will remove the run's files (default: the caller)")

    commands.add_parser("sweep", help="remove what killed runs have left")
    return top


def prepare(args, owner=None):
    return Prepared(
        args.release, args.cluster, args.slow_dispatch, args.first_chip_id, owner, args.verbose, args.real_kernels, args.simulator
    )


def main():
    args = parser().parse_args()
    if args.command == "install":
        release, info = install(args.release)
        print(json.dumps(info) if args.json else release.python)
    elif args.command == "python":
        print(json.dumps(find_python((args.version,))))
    elif args.command == "cluster":
        sys.stdout.write(mock_cluster.render(args.name))
    elif args.command == "sweep":
        for path in sweep():
            print(path)
    elif args.command == "env":
        print(json.dumps(prepare(args, args.owner or os.getppid()).describe()))
    else:
        argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
        if not argv:
            raise SystemExit("rig: run what?")
        prepared = prepare(args)
        try:
            return run(prepared, argv)
        finally:
            prepared.remove()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as missing:
        say(str(missing))
        sys.exit(UNAVAILABLE)
    except subprocess.CalledProcessError as failed:
        say(str(failed))
        sys.exit(1)
