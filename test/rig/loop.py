#!/usr/bin/env python3
"""A steady workload on mock chips, for demonstrations and for load.

Every round is shaped like serving a language model: weights fill DRAM layer by layer, a prompt is worked
through with activations in L1, tokens are decoded one by one while a cache grows, and all is given back.
On clusters of several chips the cache lies on half of them, as a submesh.

A round is the same every time, down to the addresses that the runtime's allocator hands out, so each has
the same checksum: a tracer that disturbs the workload would show in it.

Prints JSON lines: "start", "open", "round" after the first round and then at most once a second, and "done"
with the totals. SIGINT and SIGTERM end it early, but in order.
"""

import gc
import hashlib
import signal
import sys
import time

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

LAYERS = 24
TOKENS = 48
HIDDEN = 4096

# One layer's weights, as a model of some eight billion parameters has them.
WEIGHTS = (("bfloat8_b", HIDDEN, 6144), ("bfloat8_b", HIDDEN, HIDDEN), ("bfloat4_b", HIDDEN, 3 * 14336))


class Loop:
    def __init__(self, ttnn, shape):
        self.ttnn = ttnn
        self.main = common.open_mesh(ttnn, shape)
        self.cache_mesh = self.main
        if len(self.main.chips) > 1:
            half = ttnn.MeshShape(shape[0], shape[1] // 2)
            self.cache_mesh = common.Mesh(ttnn, "cache", self.main.device.create_submesh(half))
        self.digest = hashlib.sha256()
        self.counts = {"allocations": 0, "frees": 0, "operations": 0}

    def note(self, *what):
        self.digest.update(repr(what).encode())

    def hold(self, held):
        self.counts["allocations"] += 1
        self.note(held.kind, held.address, held.asked)
        return held

    def drop(self, mesh, held):
        mesh.held.remove(held)
        self.counts["frees"] += 1

    def operate(self, name, **options):
        output = self.main.operation(name, **options)
        self.counts["operations"] += 1
        self.note(name, list(output.shape), output.buffer_address())

    def round(self):
        """One round; yields after every step."""
        weights = []
        trace = None
        for layer in range(LAYERS):
            for dtype, rows, columns in WEIGHTS:
                weights.append(self.hold(self.main.interleaved("DRAM", (rows, columns), dtype, True)))
            if layer % 4 == 0:
                self.operate("tilize")
            yield "load"

        # prefill: up to six activations at the same time, 64 KiB on every core each
        cores, shard = (8, 4), (32, 1024)
        rows = cores[0] * cores[1] * shard[0]
        activations = []
        for layer in range(LAYERS):
            activations.append(
                self.hold(self.main.sharded("L1", "HEIGHT", cores, shard, (1, 1, rows, shard[1]), "bfloat16", True))
            )
            for name in ("rms_norm", "matmul", "add"):
                self.operate(name)
            self.operate("softmax", memory="L1")
            if len(activations) > 2 + layer % 5:
                self.drop(self.main, activations.pop(0))
            yield "prefill"
        while activations:
            self.drop(self.main, activations.pop())
            yield "prefill"

        # decode: a recorded trace, halos in L1_SMALL, and a cache that grows by a block every few tokens
        trace = self.hold(self.main.interleaved("TRACE", (512, 512), "bfloat16", True))
        cache = []
        for token in range(TOKENS):
            if token % 2 == 0:
                cache.append(self.hold(self.cache_mesh.interleaved("DRAM", (LAYERS, HIDDEN, 256), "bfloat8_b", True)))
            small = self.hold(self.main.sharded("L1_SMALL", "HEIGHT", (8, 4), (16, 64), (512, 64), "bfloat16", False))
            state = self.hold(self.main.interleaved("L1", (32, HIDDEN * (1 + token % 6)), "bfloat16", True))
            for name in ("rms_norm", "multiply", "add"):
                self.operate(name, height=32, memory="L1")
            yield "decode"
            self.drop(self.main, small)
            self.drop(self.main, state)
        for block in cache:
            self.drop(self.cache_mesh, block)
        self.drop(self.main, trace)
        yield "release"
        while weights:
            for _ in range(min(2 * len(WEIGHTS), len(weights))):
                self.drop(self.main, weights.pop())
            yield "release"

    def start_round(self):
        self.digest = hashlib.sha256()
        return self.round()

    def close(self):
        self.main.free_all()
        self.cache_mesh.free_all()
        gc.collect()
        self.ttnn.close_mesh_device(self.main.device)


class Pace:
    """Lets steps through at a rate, or immediately when there is none."""

    def __init__(self, rate):
        self.interval = 1 / rate if rate else 0
        self.next = time.monotonic()

    def wait(self):
        if not self.interval:
            return
        self.next += self.interval
        late = time.monotonic() - self.next
        if late < 0:
            time.sleep(-late)
        else:
            self.next += late  # what was missed is not caught up with in a burst


def run(args, protocol, ttnn):
    stop = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.append(True))

    loop = Loop(ttnn, mock_cluster.MESH_SHAPES[args.cluster])
    meshes = [loop.main] if loop.cache_mesh is loop.main else [loop.main, loop.cache_mesh]
    protocol.emit(
        "open", chips=loop.main.chips, ops_on="main", meshes=[{"mesh": m.name, "chips": m.chips} for m in meshes]
    )  # fmt: skip
    pace = Pace(args.rate)
    deadline = time.monotonic() + args.seconds if args.seconds else float("inf")
    checksums = set()
    rounds = steps = 0
    next_report = 0.0
    while not stop and time.monotonic() < deadline and (not args.rounds or rounds < args.rounds):
        for _ in loop.start_round():
            steps += 1
            pace.wait()
            if stop or time.monotonic() >= deadline:
                break
        else:
            rounds += 1
            checksums.add(loop.digest.hexdigest())
            if time.monotonic() >= next_report:
                protocol.emit("round", n=rounds, steps=steps, checksum=loop.digest.hexdigest())
                next_report = time.monotonic() + 1
    loop.close()
    protocol.emit(
        "done", n=rounds, steps=steps, counts=loop.counts,
        checksum=min(checksums, default=""), same=len(checksums) == 1,
    )  # fmt: skip


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=0, help="end after this time")
    parser.add_argument("--rounds", type=int, default=0, help="end after so many rounds")
    parser.add_argument("--rate", type=float, default=0, help="steps a second; default: as many as possible")
    args = parser.parse_args()
    if not args.seconds and not args.rounds:
        args.seconds = 30

    protocol = common.Protocol(wait=False)
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
