#!/usr/bin/env python3
"""A process of the real runtime that holds much, for what sampling costs.

It holds as many buffers, programs and bytes of arrays as its arguments say, then prints "open" and obeys
commands, one a line on stdin, with "done" after each:
  churn N    free and allocate N buffers in each second, in steps of a hundredth, from now on
  quit       end
"""

import collections
import os
import random
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import common  # noqa: E402
import mock_cluster  # noqa: E402

STEP = 0.01  # seconds


class Holding:
    def __init__(self, ttnn, shape):
        self.random = random.Random(1)
        self.mesh = common.open_mesh(ttnn, shape)
        self.held = collections.deque()
        self.rate = 0
        self.changed = threading.Condition()
        threading.Thread(target=self.churn, daemon=True).start()

    def allocate(self):
        memory = "L1" if self.random.random() < 0.05 else "DRAM"
        shape = (1, 1, 32 * self.random.randint(1, 4), 32 * self.random.randint(1, 4))
        self.held.append(self.mesh.empty(shape, config=self.mesh.memory_config(memory)))

    def program(self, number):
        """Each has two kernels of its own and a circular buffer."""
        ttnn = self.mesh.ttnn
        a = self.mesh.empty((1, 1, 32, 32))
        cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 2))])

        def kernel(name, config):
            source = f"// {name} {number}\nvoid kernel_main() {{}}\n"
            return ttnn.KernelDescriptor(
                kernel_source=source, source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE,
                core_ranges=cores, config=config,
            )  # fmt: skip

        kernels = [kernel("reader", ttnn.ReaderConfigDescriptor()), kernel("compute", ttnn.ComputeConfigDescriptor())]
        form = ttnn.CBFormatDescriptor(buffer_index=0, data_format=ttnn.bfloat16, page_size=2048)
        circular = ttnn.CBDescriptor(total_size=4096, core_ranges=cores, format_descriptors=[form])
        ttnn.generic_op([a, a], ttnn.ProgramDescriptor(kernels=kernels, semaphores=[], cbs=[circular]))

    def churn(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.rate)
                rate = self.rate
            begin = time.monotonic()
            for _ in range(max(1, int(rate * STEP))):
                # The next is not where the last one was: models free and allocate in different orders.
                self.held.rotate(self.random.randrange(len(self.held)))
                self.held.popleft()
                self.allocate()
            time.sleep(max(0, begin + STEP - time.monotonic()))


def main():
    buffers, programs, arrays = (int(a) for a in sys.argv[3:6])
    protocol = common.Protocol()
    import ttnn  # takes a while, and prints: only after the protocol has its stdout

    h = Holding(ttnn, mock_cluster.MESH_SHAPES[sys.argv[2]])
    for number in range(programs):
        h.program(number)
    held = [bytearray(os.urandom(1 << 20) * 16) for _ in range(arrays >> 24)]
    for _ in range(buffers):
        h.allocate()
    protocol.emit("open", pid=os.getpid(), arrays=len(held), programs=h.mesh.device.num_program_cache_entries())
    while (command := protocol.command()) != "quit":
        with h.changed:
            h.rate = int(command.split()[1])
            h.changed.notify()
        protocol.emit("done")


main()
