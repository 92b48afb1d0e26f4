#!/usr/bin/env python3
"""Fails on purpose in each way in which the runtime finds no room, in functions whose names say what.

Messages: start, open, then for each way in --ways one of its name (error: what the runtime says; failed: there was no
room), done; with --wait it goes on at a line on stdin; closed. The ways:

    beyond_l1   circular buffers that alone are larger than L1
    too_large   a program that is too large for the kernel-config ring, with a --worker-l1-size that leaves it little
    oom         a buffer that is larger than L1; with TT_METAL_ALLOCATOR_MODE_HYBRID=1 the runtime's words are others
    dram        a buffer that is larger than DRAM
    shards      more shards than there are cores, which is not out of memory
    other       an exception that has nothing to do with memory
"""

import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

# Circular buffers of one core, in bytes: three pages of different sizes.
SIZES = (1 << 20, 512 << 10, 2048)


def message(error):
    """What the runtime says, without where it is in its code and the backtrace."""
    text = str(error)
    start = text.find("info:\n")
    return text[start + len("info:\n") :].split("\nbacktrace:")[0].strip() if start >= 0 else text


def program(mesh, sizes):
    ttnn = mesh.ttnn
    cores = mesh.cores(2, 2)
    kernel = ttnn.KernelDescriptor(
        kernel_source="void kernel_main() {}",
        source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE, core_ranges=cores, config=ttnn.ReaderConfigDescriptor(),
    )  # fmt: skip
    buffers = [
        ttnn.CBDescriptor(
            total_size=size, core_ranges=cores,
            format_descriptors=[ttnn.CBFormatDescriptor(buffer_index=i, data_format=ttnn.bfloat16, page_size=2048)],
        )
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    return ttnn.ProgramDescriptor(kernels=[kernel], semaphores=[], cbs=buffers)


def beyond_l1(mesh):
    a = mesh.empty((1, 1, 32, 32))
    mesh.ttnn.generic_op([a, a], program(mesh, SIZES))


def too_large(mesh):
    a = mesh.empty((1, 1, 32, 32))
    mesh.ttnn.generic_op([a, a], program(mesh, (2048,)))


def oom(mesh):
    mesh.empty((1, 1, 64 << 10, 1024), config=mesh.memory_config("L1"))


def dram(mesh):
    mesh.empty((1, 1, 1 << 20, 1 << 14))


def shards(mesh):
    ttnn = mesh.ttnn
    spec = ttnn.ShardSpec(mesh.cores(1, 1), [32, 32], ttnn.ShardOrientation.ROW_MAJOR)
    mesh.empty((1, 1, 96, 32), config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec))


def other(mesh):
    mesh.ttnn.matmul(mesh.empty((1, 1, 32, 64)), mesh.empty((1, 1, 32, 64)))


# What throws for another reason than memory.
NO_FAILURES = ("shards", "other")

WAYS = {f.__name__: f for f in (beyond_l1, too_large, oom, dram, shards, other)}


def run(args, protocol, ttnn):
    options = {"worker_l1_size": args.worker_l1_size} if args.worker_l1_size else {}
    shape = mock_cluster.MESH_SHAPES[args.cluster]
    mesh = common.Mesh(ttnn, "main", ttnn.open_mesh_device(ttnn.MeshShape(*shape), **options))
    protocol.emit("open", chips=mesh.chips)
    held = mesh.empty((1, 1, 256, 1024), config=mesh.memory_config("L1"))
    for name in args.ways.split(","):
        try:
            WAYS[name](mesh)
        except RuntimeError as error:
            protocol.emit(name, error=message(error), failed=name not in NO_FAILURES)
        else:
            protocol.emit(name, error="", failed=False)
    protocol.emit("done", held=[held.buffer_address()])
    protocol.command()
    ttnn.close_mesh_device(mesh.device)
    protocol.emit("closed")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--ways", default="beyond_l1,oom,dram,other", help="what fails, in order")
    parser.add_argument("--worker-l1-size", type=int, default=0, help="bytes of L1 for buffers: the rest is for the ring")
    parser.add_argument("--wait", action="store_true", help="wait before the mesh is closed")
    args = parser.parse_args()
    protocol = common.Protocol(wait=args.wait)
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
