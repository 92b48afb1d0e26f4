#!/usr/bin/env python3
"""Allocates a small and a large buffer in turn, at the same address, for tests that read them during that.

It does so for a while with small ones of each of several kinds, then holds one of each kind. Messages, each of which waits: open;
rest.
"""

import sys
import time

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

LIVES = 0.004  # seconds
KINDS = [(memory, sharded, n) for memory in ("DRAM", "L1") for sharded in (False, True) for n in range(1, 5)]


def allocate(mesh, memory, sharded, n):
    if sharded:
        cores = (2, 2) if memory == "L1" else (2, 1)
        height = 32 * n
        count = cores[0] * cores[1]
        mesh.sharded(memory, "HEIGHT", cores, (height, 32), (1, 1, height * count, 32), "bfloat16", True)
    else:
        mesh.interleaved(memory, (1, 1, 32, 32 * n), "bfloat16", True)


def run(args, protocol, ttnn):
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    protocol.emit("open")
    protocol.command()
    for kind in KINDS:
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            allocate(mesh, *kind)
            time.sleep(LIVES)
            mesh.free_all()
            mesh.interleaved(kind[0], (1, 1, 256, 1024), "bfloat16", True)
            time.sleep(LIVES)
            mesh.free_all()
    for kind in KINDS:
        allocate(mesh, *kind)
    protocol.emit("rest", n=1, devices=[mesh.report()])
    protocol.command()


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for how long with each kind")
    args = parser.parse_args()
    protocol = common.Protocol()
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
