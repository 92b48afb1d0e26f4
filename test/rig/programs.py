#!/usr/bin/env python3
"""Runs many operations, one after the other, and stops after each.

Each operation runs a number of times with the same shapes, so that its program is placed once and cached.
With --capture the runtime's graph capture watches, and what it saw of circular buffers is printed: the
oracle for a run of the same operations without it.

Messages: start, open, op (name, cbs with --capture; waits for a line), cleared (the program cache is empty;
waits), closed (waits), error.
"""

import os
import re
import sys
import types
from importlib.metadata import version

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

# Operations that the mock's smaller grids do not stop.
MORE = ("sum", "mean", "reshape", "permute", "zeros_like", "full_like", "ones_like", "concat_rows")
# And those that only run where the whole grid is there, or in slow dispatch.
WHOLE_GRID = ("exp", "relu", "gelu", "sqrt", "pad", "concat")


# The cores that the kernels of "generic" run on, as X Y X Y: 6, 1 and 4.
GENERIC_CORES = ((0, 0, 1, 2), (5, 5, 5, 5), (3, 0, 3, 3))


def generic(mesh, a):
    """Two kernels, on cores that are given here: the first two ranges, and all three."""
    ttnn = mesh.ttnn

    def cores(ranges):
        return ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(*r[:2]), ttnn.CoreCoord(*r[2:])) for r in ranges])

    def kernel(name, ranges, config):
        source = f"// {name}\nvoid kernel_main() {{}}\n"
        return ttnn.KernelDescriptor(
            kernel_source=source, source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE,
            core_ranges=cores(ranges), config=config,
        )  # fmt: skip

    program = ttnn.ProgramDescriptor(
        kernels=[
            kernel("reader", GENERIC_CORES[:2], ttnn.ReaderConfigDescriptor()),
            kernel("compute", GENERIC_CORES, ttnn.ComputeConfigDescriptor()),
        ],
        semaphores=[], cbs=[],
    )  # fmt: skip
    return ttnn.generic_op([a, a], program)


def operate(mesh, name):
    """Run an operation by its name.

    add@DLD is add of a tensor in DRAM and one in L1, into DRAM: each such choice is a program of its own.
    """
    ttnn = mesh.ttnn
    name, _, places = name.partition("@")
    if places:
        a, b, out = (mesh.memory_config({"D": "DRAM", "L": "L1"}[p]) for p in places)
        shape = (1, 1, 64, 96)
        return getattr(ttnn, name)(mesh.empty(shape, config=a), mesh.empty(shape, config=b), memory_config=out)
    if name in common.OPERATIONS:
        return mesh.operation(name)
    a = mesh.empty((1, 1, 64, 96))
    if name == "generic":
        return generic(mesh, a)
    if name in ("sum", "mean"):
        return getattr(ttnn, name)(a, dim=-1)
    if name == "reshape":
        return ttnn.reshape(mesh.empty((1, 1, 64, 96), tiled=False), (1, 1, 96, 64))
    if name == "permute":
        return ttnn.permute(a, (0, 1, 3, 2))
    if name == "full_like":
        return ttnn.full_like(a, 1.0)
    if name == "concat_rows":
        b = mesh.empty((1, 1, 32, 32), tiled=False)
        return ttnn.concat([b, b], dim=-1)
    if name == "concat":
        return ttnn.concat([a, a], dim=-1)
    if name == "pad":
        return ttnn.pad(a, [(0, 0), (0, 0), (0, 32), (0, 32)], 0.0)
    return getattr(ttnn, name)(a)


def captured(graph, chips):
    """The circular buffers among a captured graph's nodes.

    Up to 0.69 one is reported once, with the mesh's own number; it lies on every chip of the mesh.
    """
    once = tuple(int(n) for n in version("ttnn").split(".")[:2]) < (0, 70)
    cbs = []
    for node in graph:
        if node["node_type"] != "circular_buffer_allocate":
            continue
        p = node["params"]
        numbers = [int(n) for n in re.findall(r"\d+", p["core_range_set"])]
        ranges = sorted(numbers[i : i + 4] for i in range(0, len(numbers), 4))
        for chip in chips if once else [int(p["device_id"])]:
            cbs.append({
                "chip": chip, "address": int(p["address"]), "size": int(p["size"]),
                "global": p["globally_allocated"] not in ("0", "false"), "ranges": ranges,
            })  # fmt: skip
    return cbs


class Oracle:
    """Graph capture. Its Python side wants torch, of which a name is enough here."""

    def __init__(self, ttnn, chips):
        self.chips = chips
        torch = types.ModuleType("torch")
        torch.Tensor = type("Tensor", (), {})
        sys.modules.setdefault("torch", torch)
        import ttnn.graph as graph

        self.graph = graph

    def watch(self, f):
        self.graph.begin_graph_capture(self.graph.RunMode.NORMAL)
        try:
            f()
        finally:
            nodes = self.graph.end_graph_capture()
        return captured(nodes, self.chips)


def run(args, protocol, ttnn):
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    protocol.emit("open", chips=mesh.chips)
    whole = args.cluster not in ("n300", "t3k") or os.environ.get("TT_METAL_SLOW_DISPATCH_MODE") == "1"
    names = common.OPERATIONS + MORE + (WHOLE_GRID if whole else ())
    if args.ops:
        names = tuple(args.ops.split(","))
    oracle = Oracle(ttnn, mesh.chips) if args.capture else None
    for name in names:
        cbs, failed = [], ""
        try:
            for i in range(args.times):
                if oracle and i == 0:
                    cbs = oracle.watch(lambda: operate(mesh, name))
                else:
                    operate(mesh, name)
        except (AttributeError, RuntimeError, TypeError) as error:
            failed = str(error).strip().splitlines()[0][:200] or type(error).__name__
        protocol.emit("op", name=name, cbs=cbs, failed=failed)
        protocol.command()
    mesh.device.clear_program_cache()
    protocol.emit("cleared")
    protocol.command()
    operate(mesh, names[0])
    ttnn.close_mesh_device(mesh.device)
    protocol.emit("closed")
    protocol.command()


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--capture", action="store_true")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ops", help="comma-separated; default: all that run here")
    args = parser.parse_args()
    protocol = common.Protocol()
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
