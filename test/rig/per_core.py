#!/usr/bin/env python3
"""Holds L1 tensors that have an address on each of their cores, beside others that have one address in all banks.

Messages, each of which waits: open; rest, several times, with what the allocators have taken of L1 on each chip, and
where each tensor lies; closed.
"""

import os
import sys

sys.dont_write_bytecode = True
os.environ["TT_METAL_ALLOCATOR_MODE_HYBRID"] = "1"
import common  # noqa: E402
import mock_cluster  # noqa: E402
import native  # noqa: E402


class Tensors:
    def __init__(self, ttnn, device):
        self.ttnn, self.device, self.held, self.spread = ttnn, device, [], []
        self.chips = list(device.get_device_ids())
        self.allocators = native.Allocators(device)

    def allocate(self, first, last, height, width, how):
        """A tensor of height x width bytes on each core from first to last."""
        ttnn = self.ttnn
        cores = [(x, y) for y in range(first[1], last[1] + 1) for x in range(first[0], last[0] + 1)]
        grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(*first), ttnn.CoreCoord(*last))])
        config = ttnn.MemoryConfig(
            ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1,
            ttnn.ShardSpec(grid, [height, width], ttnn.ShardOrientation.ROW_MAJOR),
        )  # fmt: skip
        if how == "core":
            config.experimental_set_per_core_allocation(True)
        if how == "range":
            config.experimental_set_range_lockstep_allocation(True)
        shape = ttnn.Shape([1, 1, height * len(cores), width])
        tensor = ttnn.allocate_tensor_on_device(shape, ttnn.uint8, ttnn.ROW_MAJOR_LAYOUT, self.device, config)
        self.held.append((tensor, cores if how == "core" else [], height * width * len(cores)))

    def report(self):
        """For each chip: bytes taken and asked for, and the tensors' addresses on each core."""
        view = self.ttnn.get_memory_view(self.device, self.ttnn.BufferType.L1)
        rows, columns = self.device.shape
        chips = []
        for row in range(rows):
            for column in range(columns):
                at = self.ttnn.MeshCoordinate(row, column)
                chip = self.chips[row * columns + column]
                allocator = self.allocators.of_chip(chip)
                own = sum(to - of for bank in range(view.num_banks) for of, to in self.allocators.ranges(allocator, bank + 1))
                where = [
                    {
                        "asked": asked,
                        "cores": [[x, y, tensor.experimental_per_core_buffer_address(at, self.ttnn.CoreCoord(x, y))] for x, y in cores],
                    }
                    for tensor, cores, asked in self.held
                    if cores
                ]  # fmt: skip
                chips.append({
                    "chip": chip, "reserved": view.total_bytes_allocated_per_bank * view.num_banks + own,
                    "asked": sum(asked for _, _, asked in self.held), "bank_bytes": view.total_bytes_per_bank, "tensors": where,
                })  # fmt: skip
        return chips


def run(args, protocol, ttnn):
    rows, columns = mock_cluster.MESH_SHAPES[args.cluster]
    device = ttnn.open_mesh_device(ttnn.MeshShape(rows, columns))
    tensors = Tensors(ttnn, device)
    protocol.emit("open", chips=tensors.chips)
    protocol.command()

    def rest(n):
        protocol.emit("rest", n=n, l1=tensors.report())
        protocol.command()

    tensors.allocate((0, 0), (0, 0), 1, 204800, "core")
    rest(1)
    tensors.allocate((1, 1), (1, 1), 1, 1000, "core")
    tensors.allocate((0, 0), (3, 0), 64, 1024, "core")
    tensors.allocate((0, 0), (3, 1), 64, 512, "all")
    tensors.allocate((4, 4), (4, 4), 64, 512, "range")
    tensors.allocate((0, 0), (3, 4), 3, 96, "core")
    rest(2)
    del tensors.held[::2]
    rest(3)
    tensors.allocate((2, 0), (3, 0), 7, 4096, "core")
    rest(4)
    tensors.held.clear()
    rest(5)
    ttnn.close_mesh_device(device)
    protocol.emit("closed")
    protocol.command()


if __name__ == "__main__":
    sys.exit(common.main(__doc__, run))
