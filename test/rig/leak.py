#!/usr/bin/env python3
"""Does on purpose what a report is asked about, in functions whose names say what.

It leaks a tensor, has its peak, runs out of memory, and lets circular buffers clash with L1 buffers. Messages: start,
open, leaked (address), peak (reserved: bytes of DRAM by chip), oom (error: what the runtime says), clash (error; not
with --no-clash), done (held: the addresses of what is left); with --wait it goes on at a line on stdin; closed.
"""

import gc
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402


def leak_in_this_line(mesh, kept):
    kept.append(mesh.empty((1, 1, 320, 320)))


def peak_in_this_function(mesh):
    held = [mesh.empty((1, 1, 2048, 1024)) for _ in range(5)]
    return held, mesh.reserved_per_bank("DRAM") * mesh.dram_banks


def come_and_go(mesh):
    for _ in range(20):
        mesh.empty((1, 1, 64, 64))


def said(error, words):
    """The runtime's message, from its known words to the end of the line."""
    text = str(error)
    start = text.find(words)
    return text[max(start, 0) :].splitlines()[0]


def run_out_of_memory(mesh):
    try:
        mesh.empty((1, 1, 64 << 10, 1024), config=mesh.memory_config("L1"))
    except RuntimeError as error:
        return said(error, "Out of Memory")
    raise AssertionError("128 MiB of L1 are not out of memory")


def fill_l1(mesh):
    """Buffers down to the lowest addresses of L1."""
    view, held = mesh.view("L1"), []
    rows = view.largest_contiguous_bytes_free_per_bank * view.num_banks // (2048 * 32) * 32
    held.append(mesh.empty((1, 1, rows - 32 * 8, 1024), config=mesh.memory_config("L1")))
    return held


def clash(mesh):
    held = fill_l1(mesh)
    try:
        mesh.operation("add")
    except RuntimeError as error:
        return said(error, "Statically allocated"), len(held)
    raise AssertionError("no clash")


def run(args, protocol, ttnn):
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    protocol.emit("open", chips=mesh.chips)
    kept = []
    leak_in_this_line(mesh, kept)
    protocol.emit("leaked", address=kept[0].buffer_address())
    come_and_go(mesh)
    held, reserved = peak_in_this_function(mesh)
    protocol.emit("peak", reserved=reserved)
    held.clear()
    gc.collect()
    protocol.emit("oom", error=run_out_of_memory(mesh))
    if not args.no_clash:
        protocol.emit("clash", error=clash(mesh)[0])
    gc.collect()
    protocol.emit("done", held=[b.address for b in mesh.reported()])
    protocol.command()
    ttnn.close_mesh_device(mesh.device)
    protocol.emit("closed")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--no-clash", action="store_true", help="for releases that place no circular buffers on mock chips")
    parser.add_argument("--wait", action="store_true", help="wait before the mesh is closed, until all was read that needs the process")
    args = parser.parse_args()
    protocol = common.Protocol(wait=args.wait)
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
