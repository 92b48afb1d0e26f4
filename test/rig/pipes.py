#!/usr/bin/env python3
"""Has a space for prefetcher pipes, which takes L1 outside of the allocator, and runs operations above it.

Messages, each of which waits: open; rest, several times, with the end of the space in L1, 0 without one; closed.
"""

import gc
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402


def run(args, protocol, ttnn):
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    protocol.emit("open", chips=mesh.chips)
    protocol.command()

    def cores(first, last):
        return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(*first), ttnn.CoreCoord(*last))})

    def rest(n, end):
        protocol.emit("rest", n=n, l1=[{"chip": chip, "persistent": end} for chip in mesh.chips])
        protocol.command()

    rest(1, 0)
    space = ttnn.experimental.create_prefetcher_pipe_space(
        mesh.device, sender_cores=cores((0, 0), (0, 0)), receiver_domain=cores((1, 0), (3, 0)),
        ring_size=524288, max_receivers_per_pipe=3,
    )  # fmt: skip
    end = space.config_address() + space.config_page_size()
    rest(2, end)
    tensor = ttnn.zeros(ttnn.Shape([1, 1, 64, 64]), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh.device)
    result = ttnn.softmax(tensor, dim=-1)
    rest(3, end)
    del tensor, result, space
    mesh.device.disable_and_clear_program_cache()
    gc.collect()
    rest(4, 0)
    ttnn.close_mesh_device(mesh.device)
    protocol.emit("closed")
    protocol.command()


if __name__ == "__main__":
    sys.exit(common.main(__doc__, run))
