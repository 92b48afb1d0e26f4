#!/usr/bin/env python3
"""Frees all buffers of a device in one call, while tensors refer to some of them, and then these tensors.

Messages: start, open; then at each rest point, after which it waits for a command: rest (blocks: what the allocator has
handed out in DRAM, as address and bytes a bank; addresses count from the beginning of the allocator's part); closed.
"""

import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402


def run(args, protocol, ttnn):
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    protocol.emit("open", chips=mesh.chips)

    def rest():
        blocks = [(int(b["address"]), int(b["size"])) for b in mesh.view("DRAM").block_table if b["allocated"] == "yes"]
        protocol.emit("rest", blocks=sorted(blocks))
        protocol.command()

    old = [mesh.empty((1, 1, 64, 64)) for _ in range(4)]
    rest()
    ttnn._ttnn.device.deallocate_buffers(mesh.device)
    rest()
    new = [mesh.empty((1, 1, 64, 64)), mesh.empty((1, 1, 64, 64))]
    rest()
    # Each tensor's own free names an address: the two that have other tensors' buffers by now, and two that are free.
    for _ in range(len(old)):
        old.pop()
        rest()
    newer = [mesh.empty((1, 1, 64, 64)) for _ in range(3)]
    rest()
    new.clear()
    rest()
    newer.clear()
    rest()
    ttnn.close_mesh_device(mesh.device)
    protocol.emit("closed")
    protocol.command()


if __name__ == "__main__":
    sys.exit(common.main(__doc__, run))
