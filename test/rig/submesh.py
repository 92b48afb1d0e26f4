#!/usr/bin/env python3
"""Closes a mesh while a submesh with a live tensor is referenced, and opens the chips again.

Messages, each of which waits: rest with both meshes; closed; rest with the mesh that was opened next, alone.
"""

import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

SHAPE = (1, 1, 64, 64)


def run(args, protocol, ttnn):
    shape = mock_cluster.MESH_SHAPES[args.cluster]

    def rest(number, *meshes):
        protocol.emit("rest", n=number, devices=[m.report() for m in meshes])
        protocol.command()

    main = common.open_mesh(ttnn, shape)
    part = common.Mesh(ttnn, "part", main.device.create_submesh(ttnn.MeshShape(1, 1)))
    for mesh in (main, part):
        mesh.interleaved("DRAM", SHAPE, "bfloat16", True)
    rest(1, main, part)
    ttnn.close_mesh_device(main.device)
    protocol.emit("closed")
    protocol.command()
    following = common.open_mesh(ttnn, shape)
    following.interleaved("L1", SHAPE, "bfloat16", True)
    rest(2, following)


if __name__ == "__main__":
    sys.exit(common.main(__doc__, run))
