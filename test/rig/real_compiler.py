"""The runtime's real kernel compiler, out of a wheel on PyPI that carries it, and a runtime's folder that has it.

The wheel's library has the compiler as an archive, compressed by zstd, among its data.
"""

import glob
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile

WHEEL, VERSION = "jax-tt-plugin", "0.1.3"
# The wheel is of any Python, but says which systems it is for.
WANTED = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_34_x86_64"]

LIBRARY = "jax_plugins/libtt/libtt.so"
FOLDER = "runtime/sfpi"
PROGRAM = os.path.join("compiler", "bin", "riscv-tt-elf-g++")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def unpack(wheel, temporary):
    """Unpack the compiler below a temporary folder and return its own folder there."""
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract(LIBRARY, temporary)
    with open(library, "rb") as file:
        content = file.read()
        at = content.find(ZSTD_MAGIC)
        while at >= 0:
            if extract(file, at, temporary):
                break
            at = content.find(ZSTD_MAGIC, at + 1)
    os.unlink(library)
    folder = os.path.join(temporary, *FOLDER.split("/"))
    if not os.access(os.path.join(folder, PROGRAM), os.X_OK):
        raise SystemExit(f"rig: no kernel compiler in {os.path.basename(wheel)}")
    # It came for Blackhole only. What it links with is the same for Wormhole.
    for blackhole in glob.glob(os.path.join(folder, "**", "bh-ilp32"), recursive=True):
        wormhole = os.path.join(os.path.dirname(blackhole), "wh-ilp32")
        if not os.path.exists(wormhole):
            os.symlink("bh-ilp32", wormhole)
    return folder


def extract(file, at, into):
    """Extract the compiler from the compressed archive at an offset, if there is one with it; returns whether."""
    file.seek(at)
    os.lseek(file.fileno(), at, os.SEEK_SET)
    found = False
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with subprocess.Popen(["zstd", "-dc"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as zstd:
        try:
            # zstd complains of the data that follow; the archive says itself where it ends.
            with tarfile.open(fileobj=zstd.stdout, mode="r|") as archive:
                for member in archive:
                    if member.name.startswith(FOLDER + "/"):
                        archive.extract(member, into, **options)
                        found = True
        except tarfile.ReadError:
            pass  # other data that begin like this
        finally:
            zstd.kill()
    return found


def runtime_root(folder, compiler, package):
    """Make a runtime's root out of links, unless it is there: the package's, but with this compiler.

    Kernels are cached by the folders that their sources come from, so the root stays.
    """
    if os.path.exists(folder):
        return
    unfinished = tempfile.mkdtemp(prefix="root-", dir=os.path.dirname(folder))
    for name in os.listdir(package):
        if name != "runtime":
            os.symlink(os.path.join(package, name), os.path.join(unfinished, name))
    os.mkdir(os.path.join(unfinished, "runtime"))
    os.symlink(os.path.join(package, "runtime", "hw"), os.path.join(unfinished, "runtime", "hw"))
    os.symlink(compiler, os.path.join(unfinished, "runtime", "sfpi"))
    os.chmod(unfinished, 0o755)
    try:
        os.rename(unfinished, folder)
    except OSError:  # another run was faster
        shutil.rmtree(unfinished)
