#!/usr/bin/env python3
"""Takes some L1 from the banks of a mesh, and gives it back, as loading and clearing a sub-device manager does: on mock
chips that crashes in its commands.

Messages, each of which waits: open; rest, several times, with how many bytes a bank of L1 has; closed.
"""

import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402
import native  # noqa: E402


def run(args, protocol, ttnn):
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    allocators = native.Allocators(mesh.device)
    protocol.emit("open", chips=mesh.chips)
    protocol.command()

    def rest(n):
        size = mesh.view("L1").total_bytes_per_bank
        protocol.emit("rest", n=n, l1=[{"chip": chip, "bank_bytes": size} for chip in mesh.chips])
        protocol.command()

    mesh.interleaved("L1", (1, 1, 32, 32), "bfloat16", True)
    rest(1)
    mesh.free_all()
    allocators.shrink(3200)
    rest(2)
    mesh.interleaved("L1", (1, 1, 32, 32), "bfloat16", True)
    rest(3)
    mesh.free_all()
    allocators.reset()
    rest(4)
    ttnn.close_mesh_device(mesh.device)
    protocol.emit("closed")
    protocol.command()


if __name__ == "__main__":
    sys.exit(common.main(__doc__, run))
