#!/usr/bin/env python3
"""Fills regions of given sizes in the same way each time.

Messages: start, open; held when all of it has found room, or no_room with the runtime's reason; closed. After
open, and after held or no_room, it waits for a command, so that a tracer can read the process.
"""

import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402


def run(args, protocol, ttnn):
    shape = ttnn.MeshShape(*mock_cluster.MESH_SHAPES[args.cluster])
    device = ttnn.open_mesh_device(shape, l1_small_size=args.l1_small, trace_region_size=args.trace_region)
    mesh = common.Mesh(ttnn, "main", device)
    protocol.emit("open", chips=mesh.chips)
    protocol.command()
    kept = []
    try:
        for height in (320, 32, 640):
            kept.append(mesh.empty((1, 1, height, 320), config=mesh.memory_config("TRACE")))
        for height in (16, 48):
            kept.append(mesh.sharded("L1_SMALL", "HEIGHT", (8, 4), (height, 64), (height * 32, 64), "bfloat16", False))
        protocol.emit("held")
    except RuntimeError as error:
        protocol.emit("no_room", error=str(error)[:1000])
    protocol.command()
    kept.clear()
    mesh.held.clear()
    ttnn.close_mesh_device(device)
    protocol.emit("closed")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--trace-region", type=int, default=4 << 20, help="bytes")
    parser.add_argument("--l1-small", type=int, default=32768, help="bytes of each bank")
    args = parser.parse_args()
    protocol = common.Protocol()
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
