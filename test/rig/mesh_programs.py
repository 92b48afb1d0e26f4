#!/usr/bin/env python3
"""Programs that differ from chip to chip: a mesh workload with one program for each coordinate, or for ranges.

Each program has one circular buffer on one core, of a size of its own, which is what the program's own
specification says: the truth for what each chip holds.

Messages: start, open (chips), ran (bytes by chip: the sum over its programs; waits), cleared (the program
cache is empty; waits), error.
"""

import os
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

PAGE = 2048


def program(ttnn, mesh, size, core=0):
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(core, 0), ttnn.CoreCoord(core, 0))})
    buffer = ttnn.CBDescriptor(
        total_size=size,
        core_ranges=cores,
        format_descriptors=[ttnn.CBFormatDescriptor(buffer_index=0, data_format=ttnn.bfloat16, page_size=PAGE)],
    )
    kernel = ttnn.KernelDescriptor(
        kernel_source="void kernel_main() {}",
        source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE,
        core_ranges=cores,
        config=ttnn.ReaderConfigDescriptor(),
    )
    return ttnn.ProgramDescriptor(kernels=[kernel], semaphores=[], cbs=[buffer])


def run(args, protocol, ttnn):
    rows, columns = mock_cluster.MESH_SHAPES[args.cluster]
    mesh = common.open_mesh(ttnn, (rows, columns))
    protocol.emit("open", chips=mesh.chips)
    coordinates = [(y, x) for y in range(rows) for x in range(columns)]
    chips = dict(zip(coordinates, mesh.chips))
    held = dict.fromkeys(mesh.chips, 0)
    kept = []

    def launch(parts):
        """Parts are of a mesh: first and last coordinate, and the size of the circular buffer."""
        descriptor = ttnn.MeshProgramDescriptor()
        for (first, last), size, core in parts:
            range_ = ttnn.MeshCoordinateRange(ttnn.MeshCoordinate(*first), ttnn.MeshCoordinate(*last))
            descriptor[range_] = program(ttnn, mesh, size, core)
            for y, x in coordinates:
                if first[0] <= y <= last[0] and first[1] <= x <= last[1]:
                    held[chips[y, x]] += size
        tensors = [mesh.empty((1, 1, 32, 32)) for _ in range(2)]
        kept.extend(tensors)
        ttnn.generic_op(tensors, descriptor)

    # One for each chip, each twice as large as the previous one, up to a limit.
    launch([((c, c), PAGE * 5 * (1 << (i % 4)), 0) for i, c in enumerate(coordinates)])
    protocol.emit("ran", bytes=[[chip, held[chip]] for chip in mesh.chips])
    protocol.command()
    # Two ranges, and the whole mesh.
    launch([(((0, 0), (rows - 1, 0)), PAGE * 3, 1), (((0, 1), (rows - 1, columns - 1)), PAGE * 6, 1)])
    launch([(((0, 0), (rows - 1, columns - 1)), PAGE * 7, 2)])
    if os.environ.get("TT_METAL_SLOW_DISPATCH_MODE") == "1":
        # The mock crashes where a part of the mesh has no program.
        launch([(((0, 0), (rows - 1, 0)), PAGE * 9, 3)])
    protocol.emit("ran", bytes=[[chip, held[chip]] for chip in mesh.chips])
    protocol.command()
    mesh.device.clear_program_cache()
    protocol.emit("cleared")
    protocol.command()


if __name__ == "__main__":
    sys.exit(common.main(__doc__, run))
