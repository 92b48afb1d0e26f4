#!/usr/bin/env python3
"""A random life of devices: they are opened in every way, have submeshes, allocate, are closed, kept or forgotten, and opened again.

One mesh, or one set of unit meshes, is open at a time, with its submeshes; what is closed holds nothing, whether its objects are kept or
not. The runtime closes chips with the last object of their meshes, so objects that were kept are forgotten only while nothing is open.

Messages: start; rest (n, steps, pid, devices; waits), closed, error.
"""

import functools
import gc
import random
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402
import ways  # noqa: E402

MAX_HELD, MAX_SUBMESHES = 24, 3


class Life(ways.Lab):
    def __init__(self, args, protocol, ttnn):
        super().__init__(args, protocol, ttnn)
        self.random = random.Random(args.seed)
        self.way = f"life {args.seed}"
        self.roots, self.close_roots = [], None
        self.kept = []
        self.last = []

    # --- devices

    def open(self):
        ttnn, chips = self.ttnn, self.shape[0] * self.shape[1]
        sizes = {"l1_small_size": ways.SMALL, "trace_region_size": ways.REGION}
        how = self.random.choice(("open_device", "CreateDevice", "CreateDevices", "mesh", "mesh", "mesh of one"))
        if how == "CreateDevices":
            devices = ttnn.CreateDevices(list(range(chips)), **sizes)
            self.roots = [self.opened(d) for d in devices.values()]
            self.close_roots = functools.partial(ttnn.CloseDevices, devices)
            return how
        if how in ("open_device", "CreateDevice"):
            device = getattr(ttnn, how)(device_id=0, **sizes)
            close = ttnn.close_device
        else:
            shape = self.shape if how == "mesh" else (1, 1)
            device = ttnn.open_mesh_device(ttnn.MeshShape(*shape), **sizes)
            close = ttnn.close_mesh_device
        self.roots = [self.opened(device)]
        self.close_roots = functools.partial(close, device)
        return how

    def close(self):
        """The roots and their submeshes; each object is kept, with or without its tensors, or forgotten."""
        self.close_roots()
        for mesh in list(self.meshes):
            self.closing(mesh)
            if self.random.random() < 0.5:
                mesh.free_all()
            if self.random.random() < 0.5:
                self.kept.append(mesh)
        self.roots, self.close_roots = [], None
        if not self.kept or self.random.random() < 0.6:
            self.kept.clear()
        gc.collect()

    def add_submesh(self):
        mesh = self.random.choice(self.meshes)
        rows, columns = tuple(mesh.device.shape)
        part = self.submesh(mesh, (self.random.randint(1, rows), self.random.randint(1, columns)))
        part.parent = mesh

    def end_submesh(self):
        part = self.random.choice([m for m in self.meshes if m not in self.roots])
        if any(getattr(m, "parent", None) is part for m in self.meshes):
            return
        if self.random.random() < 0.5:
            part.free_all()
        self.ttnn.close_mesh_device(part.device)
        self.closing(part)
        if self.random.random() < 0.5:
            self.kept.append(part)

    # --- memory

    def allocate(self):
        mesh = self.random.choice(self.meshes)
        if len(mesh.held) >= MAX_HELD:
            return self.free()
        rows = 32 * self.random.randint(1, 6)
        if self.random.random() < 0.3:
            mesh.sharded("L1", "HEIGHT", (4, 2), (rows, 64), (1, 1, rows * 8, 64), "bfloat16", True)
        else:
            mesh.interleaved(self.random.choice(("DRAM", "L1")), (1, 1, rows, 320), "bfloat16", True)
        return None

    def free(self):
        mesh = self.random.choice(self.meshes)
        if mesh.held:
            mesh.held.pop(self.random.randrange(len(mesh.held)))

    # --- all of it

    def step(self):
        roll = self.random.random()
        if not self.meshes:
            if roll < 0.3:
                self.kept.clear()
                gc.collect()
                return "forget"
            return self.open()
        submeshes = len(self.meshes) - len(self.roots)
        if roll < 0.12:
            self.close()
            return "close"
        if roll < 0.22 and submeshes < MAX_SUBMESHES:
            self.add_submesh()
            return "submesh"
        if roll < 0.28 and submeshes:
            self.end_submesh()
            return "close a submesh"
        if roll < 0.8:
            self.allocate()
            return "allocate"
        self.free()
        return "free"

    def live(self):
        for _ in range(self.args.rests):
            steps = [self.step() for _ in range(self.random.randint(3, 14))]
            self.rest(", ".join(steps))
        if self.meshes:
            self.close()
        self.kept.clear()
        self.rest("all is closed")


def run(args, protocol, ttnn):
    Life(args, protocol, ttnn).live()
    protocol.emit("closed")
    protocol.command()


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rests", type=int, default=12)
    parser.add_argument("--no-wait", action="store_true", help="do not wait for commands at rest points")
    args = parser.parse_args()
    protocol = common.Protocol(wait=not args.no_wait)
    return common.run(protocol, functools.partial(run, args, protocol))


if __name__ == "__main__":
    sys.exit(main())
