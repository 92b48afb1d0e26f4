#!/usr/bin/env python3
"""Programs that outlive the mesh that they ran on, and the chips of that.

Each rest says for each chip that is open how many programs have circular or dataflow buffers there: those in the caches of
meshes whose chips are open since they ran.

Messages: start, rest (programs by chip; waits), error.
"""

import os
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402


class Chips:
    """The chips, and the caches whose programs are placed on them."""

    def __init__(self, ttnn, protocol, shape):
        self.ttnn, self.protocol, self.shape = ttnn, protocol, shape
        self.caches = []
        self.unplaced = {}

    def open(self):
        main = common.open_mesh(self.ttnn, self.shape)
        self.chips = main.chips
        self.caches.append((main.device, main.chips))
        return main

    def part(self, main, *shape):
        part = common.Mesh(self.ttnn, "part", main.device.create_submesh(self.ttnn.MeshShape(*shape)))
        self.caches.append((part.device, part.chips))
        return part

    def rest(self, what, opened=True):
        held = dict.fromkeys(self.chips if opened else [], 0)
        for device, chips in self.caches:
            for chip in chips:
                held[chip] += device.num_program_cache_entries() - self.unplaced.get(device.id(), 0)
        self.protocol.emit("rest", what=what, programs=[[chip, n] for chip, n in held.items()])
        self.protocol.command()


def run(args, protocol, ttnn):
    def close(mesh):
        _ = [mesh.empty((1, 1, 32, 32)) for _ in range(args.buffers)]
        ttnn.close_mesh_device(mesh.device)

    chips = Chips(ttnn, protocol, mock_cluster.MESH_SHAPES[args.cluster])
    main = chips.open()
    part = chips.part(main, 1, 1)
    part.operation("matmul")
    chips.rest("on a submesh")
    close(part)
    chips.rest("the submesh is closed")
    close(main)
    outlived, chips.caches = chips.caches, []
    chips.rest("all is closed", opened=False)
    main = chips.open()
    part = chips.part(main, 1, chips.shape[1])
    chips.rest("the chips are open again")
    part.operation("add")
    chips.rest("on another submesh")
    close(main)
    chips.rest("a submesh outlives its mesh")
    main = chips.open()
    chips.rest("and the chips are opened by another one")
    main.operation("softmax")
    chips.rest("on the whole mesh")
    placed = main.device.num_program_cache_entries()
    cores = ttnn.CoreGrid(y=1, x=8)
    config = ttnn.create_sharded_memory_config((1, 1, 256, 64), core_grid=cores, strategy=ttnn.ShardStrategy.HEIGHT)
    a = main.empty((1, 1, 256, 64), config=config)
    ttnn.add(a, a, memory_config=config)
    chips.unplaced[main.device.id()] = main.device.num_program_cache_entries() - placed
    chips.rest("one whose circular buffers all lie in buffers")
    sys.stdout.flush()
    os._exit(0 if outlived else 1)  # closing what is closed fails in some releases


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--buffers", type=int, default=0, help="allocate and free so many before each closing")
    args = parser.parse_args()
    protocol = common.Protocol()
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
