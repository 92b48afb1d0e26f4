#!/usr/bin/env python3
"""Stand-in for the runtime's kernel compiler, riscv-tt-elf-g++, for runs on mock devices.

The runtime compiles device kernels when a program first runs. A mock device never executes one, so this
makes small valid RV32 objects instead, of a repeatable size (by a hash of the kernel's name), and links
them with the runtime's own linker scripts. What the runtime reads from the result (segments, their sizes
and addresses) is therefore as real as it is with the true compiler, only smaller.

Needs riscv64-unknown-elf-as and -ld (Debian package binutils-riscv64-unknown-elf). rig.py installs it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile

AS = ["riscv64-unknown-elf-as", "-march=rv32im", "-mabi=ilp32"]
LD = ["riscv64-unknown-elf-ld", "-melf32lriscv"]

# firmware has to fit in fixed regions of at least 0x600 bytes
FIRMWARE_NOPS = 32


def option(args, name):
    return args[args.index(name) + 1] if name in args else None


def assembly(out):
    kernel = out.split("/")[-2]
    nops = FIRMWARE_NOPS
    if "/firmware/" not in out:
        nops = 64 + int(hashlib.sha1(kernel.encode()).hexdigest(), 16) % 512
    return '.section .text.start,"ax"\n.globl _start\n_start:\n' + "  nop\n" * nops + "1: j 1b\n.data\n.word 1\n"


def link_arguments(args, out):
    for arg in args:
        if arg.startswith(("-T", "-L")):
            yield arg
        elif arg.startswith("-Wl,"):
            yield from arg[4:].split(",")
        elif arg.endswith(".o") and arg != out and "runtime/hw/lib" not in arg and "crt0" not in os.path.basename(arg):
            yield arg


def main():
    args = sys.argv[1:]
    if args[:1] == ["--version"]:
        print("riscv-tt-elf-g++ (stand-in) 15.1.0")
        return 0
    out = option(args, "-o")
    if out is None:
        sys.stderr.write("kernel compiler stand-in: only invocations with -o are known\n")
        return 1
    dependencies = option(args, "-MF")
    if dependencies:
        sources = [a for a in args if a.endswith((".cc", ".cpp", ".c"))]
        with open(dependencies, "w") as deps:
            deps.write(f"{out}: {' '.join(sources)}\n")
    if out.endswith(".gch"):
        with open(out, "wb") as header:
            header.write(b"gch")
        return 0

    # Two processes may build the same kernel in the same cache: neither may see half a file of the other.
    handle, unfinished = tempfile.mkstemp(dir=os.path.dirname(out) or ".", prefix=".standin-")
    os.close(handle)
    try:
        if "-c" in args:
            command = [*AS, "-", "-o", unfinished]
            code = subprocess.run(command, input=assembly(out).encode(), check=False).returncode
        else:
            command = [*LD, "-o", unfinished, *link_arguments(args, out)]
            code = subprocess.run(command, check=False).returncode
        if code == 0:
            os.chmod(unfinished, 0o755)
            os.replace(unfinished, out)
        return code
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


if __name__ == "__main__":
    sys.exit(main())
