"""Holds one MiB of DRAM on one chip. Every line on stdin is one step, of which it prints the name."""

import sys


def step(name):
    print(name, flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


step("started")
import ttnn  # noqa: E402

device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
tensor = ttnn.empty([1, 1, 1024, 512], dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
step("holding")
ttnn.deallocate(tensor)
step("freed")
ttnn.close_mesh_device(device)
step("closed")
