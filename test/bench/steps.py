#!/usr/bin/env python3
"""Times single steps of the real runtime: "allocate N", "launch N" on stdin, nanoseconds of the thread on stdout;
"decode N" by the clock: what a host that feeds a model does for each token."""

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
        # The tensor is freed immediately.
        allocate_tensor(shape, ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh.device, config)

    def launch():
        ttnn.add(a, b, output_tensor=out)

    def decode():
        # As in a round of the rig's loop.
        small = mesh.sharded("L1_SMALL", "HEIGHT", (8, 4), (16, 64), (512, 64), "bfloat16", False)
        state = mesh.interleaved("L1", (32, 4096), "bfloat16", True)
        for name in ("rms_norm", "multiply", "add"):
            mesh.operation(name, height=32, memory="L1")
        mesh.held.remove(small)
        mesh.held.remove(state)

    steps = {"allocate": allocate, "launch": launch, "decode": decode}
    clocks = {"decode": time.perf_counter_ns}
    for step in steps.values():
        for _ in range(100):
            step()
    protocol.emit("open", pid=os.getpid())
    while (command := protocol.command()) != "quit":
        name, count = command.split()
        step, clock = steps[name], clocks.get(name, time.thread_time_ns)
        begin = clock()
        for _ in range(int(count)):
            step()
        protocol.emit("timed", ns=clock() - begin)


main()
