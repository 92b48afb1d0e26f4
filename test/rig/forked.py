#!/usr/bin/env python3
"""Workers that are forked once the runtime is loaded, as by multiprocessing, and open devices of their own.

Messages: start; worker for each (pid, chips, and by memory how many buffers it holds and their size on each chip); ready,
once all hold them and the parent has done what --parent says. After a command: closed, and after another one it ends.
"""

import multiprocessing
import os
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402


def open_and_close(ttnn, args):
    """Opens devices, allocates, and closes them."""
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    mesh.interleaved("DRAM", [1, 1, 320, 320], "bfloat16", True)
    mesh.free_all()
    ttnn.close_mesh_device(mesh.device)


def worker(args, protocol, ttnn, number, held, end):
    if args.parent == "copied":
        protocol.emit("worker", pid=os.getpid(), chips=[], memories={})
        held.release()
        end.wait()
        os._exit(0)  # what it has copies of is not its own to close
    mesh = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    for n in range(number + 2):
        mesh.interleaved("DRAM", [1, 1, 32, 64 * (n + 1)], "bfloat16", True)
        mesh.interleaved("L1", [1, 1, 32, 32 * (n + 1)], "bfloat16", True)
    memories = {m: {"buffers": 0, "bytes": 0} for m in ("DRAM", "L1")}
    for h in mesh.held:
        memories[h.memory]["buffers"] += 1
        memories[h.memory]["bytes"] += h.asked
    protocol.emit("worker", pid=os.getpid(), chips=mesh.chips, memories=memories)
    held.release()
    end.wait()
    mesh.free_all()
    ttnn.close_mesh_device(mesh.device)


def run(args, protocol, ttnn):
    if args.parent in ("before", "both"):
        open_and_close(ttnn, args)
    copied = None
    if args.parent == "copied":
        copied = common.open_mesh(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
        copied.interleaved("DRAM", [1, 1, 320, 320], "bfloat16", True)
    fork = multiprocessing.get_context("fork")
    held, end = fork.Semaphore(0), fork.Event()
    workers = [fork.Process(target=worker, args=(args, protocol, ttnn, n, held, end)) for n in range(args.workers)]
    for w in workers:
        w.start()
    for _ in workers:
        held.acquire()
    if copied:
        copied.free_all()
        ttnn.close_mesh_device(copied.device)
    if args.parent in ("after", "both"):
        open_and_close(ttnn, args)
    protocol.emit("ready")
    protocol.command()
    end.set()
    for w in workers:
        w.join()
    protocol.emit("closed")
    protocol.command()


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parent", choices=("never", "before", "after", "both", "copied"), default="never",
                        help="when the parent opens and closes the devices, seen from the forks; copied: it has them open at the forks, "
                        "closes them, and the workers open none")  # fmt: skip
    args = parser.parse_args()
    protocol = common.Protocol()
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
