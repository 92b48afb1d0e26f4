#!/usr/bin/env python3
"""Captures a trace, allocates after it, and enters its replay.

With --pause it waits for a command after open and captured, too.

Messages: start, open; captured (free: the address of a buffer that came and went in the capture); allocated
(live: the addresses of the tensors that were allocated after the capture; marked: of those that the program marks as
corruptible; unsafe: how many buffers the runtime's own tracking calls unsafe under this trace, null where it does not
track: TT_METAL_TRACE_ALLOC_TRACKING=1, from 0.79). Then it waits for a command: "replay" enters the replay, in which mock chips crash;
"keep" allocates once more (kept) and closes with the trace; anything else releases the trace, allocates once more
(released), and closes: closed.
"""

import os
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402


def runtimes_own(ttnn, mesh, trace):
    """The ids that the runtime tracks as unsafe under the trace, or None."""
    if os.environ.get("TT_METAL_TRACE_ALLOC_TRACKING") != "1":
        return None
    from ttnn._ttnn.operations.trace import get_unsafe_tracked_ids

    return len(get_unsafe_tracked_ids(mesh.device, trace))


def corruptible(ttnn, mesh):
    """Tensors that a replay may overwrite, as the program says: allocated in a scope, and acknowledged afterwards."""
    try:
        from ttnn.tools import trace_allocation_tracker as tracker
    except ImportError:
        return []
    with tracker.corruptible_allocation_scope(mesh.device):
        tensors = [mesh.empty((1, 1, 32, 64)), mesh.empty((1, 1, 32, 96), config=mesh.memory_config("L1"))]
    tensors.append(mesh.empty((1, 1, 32, 128)))
    tracker.acknowledge_corruptible(tensors[-1])
    return tensors


def run(args, protocol, ttnn):
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    protocol.emit("open", chips=mesh.chips)
    if args.pause:
        protocol.command()
    before = mesh.empty((1, 1, 64, 64))
    trace = ttnn.begin_trace_capture(mesh.device, cq_id=0)
    within = mesh.empty((1, 1, 128, 128))
    free = within.buffer_address()
    del within
    ttnn.end_trace_capture(mesh.device, trace, cq_id=0)
    protocol.emit("captured", free=free)
    if args.pause:
        protocol.command()
    # The first takes the place of the one from the capture, the others do not; one is gone before the replay.
    live = [mesh.empty((1, 1, 128, 128)), mesh.empty((1, 1, 32, 32), config=mesh.memory_config("L1")), mesh.empty((1, 1, 32, 320))]
    gone = mesh.empty((1, 1, 256, 256))
    del gone
    marked = corruptible(ttnn, mesh)
    protocol.emit(
        "allocated",
        live=[t.buffer_address() for t in live],
        marked=[t.buffer_address() for t in marked],
        unsafe=runtimes_own(ttnn, mesh, trace),
    )
    command = protocol.command()
    if command == "replay":
        ttnn._ttnn.operations.trace.execute_trace(mesh.device, trace, cq_id=0, blocking=False)
    if command != "keep":
        ttnn.release_trace(mesh.device, trace)
    live.append(mesh.empty((1, 1, 64, 64)))
    protocol.emit("kept" if command == "keep" else "released", live=[t.buffer_address() for t in live], before=before.buffer_address())
    protocol.command()
    live.clear()
    marked.clear()
    del before
    ttnn.close_mesh_device(mesh.device)
    protocol.emit("closed")
    protocol.command()


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--pause", action="store_true")
    args = parser.parse_args()
    protocol = common.Protocol()
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
