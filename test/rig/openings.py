#!/usr/bin/env python3
"""Opens all chips again and again: as they are, with traces, with the fabric and without it.

At each rest the runtime's own account of the buffers is in the message, and how often the trace was replayed.

Messages: start, rest (what, fabric: it is on, replays, devices; waits), closed, error.
"""

import os
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

# Operations whose kernels read, compute and write.
OPERATIONS = ("add", "matmul", "softmax")


class Openings:
    def __init__(self, args, protocol, ttnn):
        self.args, self.protocol, self.ttnn = args, protocol, ttnn
        self.rests = self.replays = 0
        self.fabric = False

    def set_fabric(self, name):
        self.ttnn.set_fabric_config(getattr(self.ttnn.FabricConfig, name))
        self.fabric = name != "DISABLED"

    def open(self):
        shape = mock_cluster.MESH_SHAPES.get(self.args.cluster) or (1, self.ttnn.get_num_devices())
        self.mesh = common.open_mesh(self.ttnn, shape)
        self.kept = [self.mesh.empty((1, 1, 64, 64)), self.mesh.empty((1, 1, 32, 32), config=self.mesh.memory_config("L1"))]
        self.kept += [self.mesh.operation(name) for name in OPERATIONS]

    def close(self):
        self.kept.clear()
        self.ttnn.close_mesh_device(self.mesh.device)

    def rest(self, what, last=False):
        self.ttnn.synchronize_device(self.mesh.device)
        self.protocol.emit(
            "rest", what=what, n=self.rests, fabric=self.fabric, replays=self.replays, devices=[self.mesh.report()], last=last
        )
        self.rests += 1
        self.protocol.command()

    def traces(self):
        """Operations inside a captured trace, and what is allocated after it: mock chips crash."""
        ttnn, device = self.ttnn, self.mesh.device
        a = self.kept[0]
        trace = ttnn.begin_trace_capture(device, cq_id=0)
        self.kept.append(ttnn.add(a, ttnn.add(a, a)))
        ttnn.end_trace_capture(device, trace, cq_id=0)
        self.rest("captured")
        self.kept.append(self.mesh.empty((1, 1, 128, 128)))
        for _ in range(3):
            ttnn.execute_trace(device, trace, cq_id=0, blocking=True)
        self.replays += 3
        self.rest("replayed")
        ttnn.release_trace(device, trace)
        self.rest("released")


def run(args, protocol, ttnn):
    o = Openings(args, protocol, ttnn)
    o.open()
    several = len(o.mesh.chips) > 1
    o.rest("opened")
    if args.traces:
        o.traces()
    o.close()
    o.open()
    o.rest("opened again")
    for config in ("FABRIC_1D", "DISABLED", "FABRIC_1D") if several else ():
        o.close()
        o.set_fabric(config)
        o.open()
        o.rest("opened with the fabric " + config)
    o.kept.clear()
    o.rest("all is free", last=True)
    accounts = common.shared_memory()
    o.close()
    if args.cluster == "simulator":
        for path in accounts:  # the rig removes those of mock chips, whose ids it gave
            os.unlink(path)
    protocol.emit("closed")
    protocol.command()


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--traces", action="store_true", help="capture and replay a trace")
    args = parser.parse_args()
    protocol = common.Protocol()
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
