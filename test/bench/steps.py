#!/usr/bin/env python3
"""Times single steps of the real runtime: "allocate N", "launch N" on stdin, nanoseconds of the thread on stdout."""

import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import common  # noqa: E402
import mock_cluster  # noqa: E402


def main():
    protocol = common.Protocol()
    import ttnn  # takes a while, and prints: only after the protocol has its stdout

    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[sys.argv[2]])
    a, b, out = (mesh.empty((1, 1, 32, 32)) for _ in range(3))
    config = ttnn.DRAM_MEMORY_CONFIG
    shape = ttnn.Shape([1, 1, 32, 32])
    allocate_tensor = ttnn.allocate_tensor_on_device

    def allocate():
        # The tensor is freed at once.
        allocate_tensor(shape, ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh.device, config)

    def launch():
        ttnn.add(a, b, output_tensor=out)

    steps = {"allocate": allocate, "launch": launch}
    for step in steps.values():
        for _ in range(100):
            step()
    protocol.emit("open", pid=os.getpid())
    while (command := protocol.command()) != "quit":
        name, count = command.split()
        step = steps[name]
        begin = time.thread_time_ns()
        for _ in range(int(count)):
            step()
        protocol.emit("timed", ns=time.thread_time_ns() - begin)


main()
