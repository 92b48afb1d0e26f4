#!/usr/bin/env python3
"""A random workload on mock chips that stops at rest points, for tests of a tracer.

It allocates and frees buffers of every kind and runs operations, from several threads, on a mesh and on
submeshes of it. At a rest point all threads wait, and it prints what the runtime's allocator says
it holds, next to what the workload itself asked for. See rig.go for the messages.

Commands at a rest point, one a line on stdin:
  go     continue
  gc     collect garbage, then report again
  rest   report again
  oom    ask for more L1 than there is, print the runtime's error
  arrays N   hold arrays of N bytes in all, of 1 kB to 100 MB, in host memory, then report again
  reserve N  map N bytes of host memory, of which hardly any is used, then report again
  close  close the devices, print "closed", wait for one more line and end
  quit   free everything and end; so does the end of stdin
"""

import gc
import mmap
import os
import random
import sys
import threading

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402

# Bytes per bank that a mesh may hold before its threads only free. L1 has to leave room for the circular
# buffers of programs, which the runtime places from the other end, on the same cores.
BUDGET = {"DRAM": 4 << 20, "L1": 256 << 10, "L1_SMALL": 16 << 10, "TRACE": 128 << 10}
MAX_HELD = 60

TILE_DTYPES = ("bfloat16", "float32", "bfloat8_b", "bfloat4_b", "uint8", "uint16", "uint32", "int32")
ROW_DTYPES = ("bfloat16", "float32", "uint8", "uint16", "uint32", "int32")


class Closed(Exception):
    """The devices are closed, there is nothing more to do."""


class Workload:
    def __init__(self, args, protocol, ttnn):
        self.args = args
        self.protocol = protocol
        self.ttnn = ttnn
        self.random = random.Random(args.seed)
        self.operations = common.operations()
        shape = args.mesh or mock_cluster.MESH_SHAPES[args.cluster]
        self.main = common.open_mesh(ttnn, shape)
        self.shape = shape
        self.submeshes = []
        self.made = 0
        # The mock cannot take a command queue from a mesh to its submesh or back (it crashes), so with
        # fast dispatch one of them runs all operations. Allocation knows no such limit.
        slow = os.environ.get("TT_METAL_SLOW_DISPATCH_MODE") == "1"
        self.ops_on = args.ops_on or ("both" if slow else ("main", "submeshes")[args.seed % 2])
        for _ in range(args.submeshes if len(self.main.chips) > 1 else 0):
            self.add_submesh()
        if not self.submeshes:
            self.ops_on = "main"
        self.lock = threading.Lock()
        self.counts = {"allocations": 0, "frees": 0, "operations": 0}
        self.failed = []
        self.arrays = []

    def meshes(self):
        return [self.main, *self.submeshes]

    # --- submeshes

    def add_submesh(self):
        rows, columns = self.shape
        height, width = self.random.randint(1, rows), self.random.randint(1, columns)
        if (height, width) == (rows, columns):
            width = max(1, width - 1)
        corner = (self.random.randint(0, rows - height), self.random.randint(0, columns - width))
        device = self.main.device.create_submesh(self.ttnn.MeshShape(height, width), self.ttnn.MeshCoordinate(*corner))
        self.submeshes.append(common.Mesh(self.ttnn, f"submesh{self.made}", device))
        self.made += 1

    def replace_submesh(self):
        """Give a submesh up and make another one.

        Closing it takes the parent's command queue to be unused; without that it is only let go of, and
        the parent keeps it, empty, to its own end.
        """
        mesh = self.submeshes.pop(self.random.randrange(len(self.submeshes)))
        if self.ops_on == "main":
            mesh.free_all()
        else:
            live = {"empty": False, "live": True, "either": self.random.random() < 0.5}[self.args.close_submeshes]
            if not live:
                mesh.free_all()
            self.ttnn.close_mesh_device(mesh.device)
            mesh.free_all()
        del mesh
        gc.collect()
        self.add_submesh()

    # --- steps

    def step(self, rng, growing):
        mesh = rng.choice(self.meshes())
        roll = rng.random()
        if roll < 0.15 and (self.ops_on == "both" or (self.ops_on == "main") == (mesh is self.main)):
            self.operate(rng, mesh)
        elif roll < (0.75 if growing else 0.4) and len(mesh.held) < MAX_HELD:
            self.allocate(rng, mesh)
        else:
            self.free(rng, mesh)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def free(self, rng, mesh):
        with self.lock:
            if not mesh.held:
                return
            held = mesh.held.pop(rng.randrange(len(mesh.held)))
        if rng.random() < 0.3 and not held.kind.startswith("semaphore"):
            self.ttnn.deallocate(held.thing)  # explicitly, as models do; otherwise when the object dies
        del held
        self.count("frees")

    def allocate(self, rng, mesh):
        kind = rng.choice(("DRAM", "DRAM", "L1", "L1 sharded", "L1 sharded", "DRAM sharded", "L1_SMALL", "TRACE",
                           "semaphore"))  # fmt: skip
        memory = {"semaphore": "L1"}.get(kind, kind.split()[0])
        if mesh.reserved_per_bank(memory) > BUDGET[memory]:
            return self.free(rng, mesh)
        tiled = rng.random() < 0.6
        dtype = rng.choice(TILE_DTYPES if tiled else ROW_DTYPES)
        if kind == "semaphore":
            mesh.semaphore((rng.randint(1, mesh.grid[0]), rng.randint(1, mesh.grid[1])))
        elif kind == "L1_SMALL":
            self.allocate_small(rng, mesh)
        elif kind.endswith("sharded"):
            self.allocate_sharded(rng, mesh, memory, dtype, tiled)
        else:
            high = {"DRAM": 2000, "L1": 700, "TRACE": 200}[memory]
            shape = [rng.randint(1, high), rng.randint(1, high)]
            while rng.random() < 0.4 and len(shape) < 4:
                shape.insert(0, rng.randint(1, 3))
            mesh.interleaved(memory, shape, dtype, tiled)
        self.count("allocations")
        return None

    def allocate_small(self, rng, mesh):
        cores = (rng.randint(1, mesh.grid[0]), rng.randint(1, mesh.grid[1]))
        shard = (rng.randint(1, 20), rng.randint(1, 40))
        self.shard(rng, mesh, "L1_SMALL", "HEIGHT", cores, shard, "bfloat16", False)

    def allocate_sharded(self, rng, mesh, memory, dtype, tiled):
        unit = common.TILE if tiled else 1
        if memory == "DRAM":
            sharding = rng.choice(("HEIGHT", "WIDTH"))
            cores = (rng.randint(1, mesh.dram_banks), 1)
        else:
            sharding = rng.choice(("HEIGHT", "WIDTH", "BLOCK"))
            cores = (rng.randint(1, mesh.grid[0]), rng.randint(1, mesh.grid[1]))
        shard = (unit * rng.randint(1, 3 if tiled else 60), unit * rng.randint(1, 3 if tiled else 60))
        self.shard(rng, mesh, memory, sharding, cores, shard, dtype, tiled)

    @staticmethod
    def shard(rng, mesh, memory, sharding, cores, shard, dtype, tiled):
        """A tensor over all the cores; its last shard need not be full."""
        down, across = {
            "HEIGHT": (cores[0] * cores[1], 1),
            "WIDTH": (1, cores[0] * cores[1]),
            "BLOCK": (cores[1], cores[0]),
        }[sharding]
        height, width = shard[0] * down, shard[1] * across
        if down > 1:
            height -= rng.randrange(shard[0])
        if across > 1:
            width -= rng.randrange(shard[1])
        mesh.sharded(memory, sharding, cores, shard, (1, 1, height, width), dtype, tiled)

    def operate(self, rng, mesh):
        name = rng.choice(self.operations)
        memory = rng.choice(("DRAM", "L1"))
        output = mesh.operation(name, height=common.TILE * rng.randint(1, 2), memory=memory)
        if rng.random() < 0.4 and len(mesh.held) < MAX_HELD:
            mesh.hold_output(output, name)
        self.count("operations")

    # --- threads

    def burst(self, steps, number):
        """Run steps on all threads at the same time and wait until they have stopped.

        Memory fills up in two bursts out of three, so that rest points find much to compare.
        """
        growing = number % 3 != 2
        if self.args.threads == 0:
            self.work(random.Random(f"{self.args.seed}/{number}"), steps, growing)
        else:
            threads = []
            together = threading.Barrier(self.args.threads)
            for thread in range(self.args.threads):
                share = steps // self.args.threads + (thread < steps % self.args.threads)
                rng = random.Random(f"{self.args.seed}/{number}/{thread}")
                threads.append(threading.Thread(target=self.work, args=(rng, share, growing, together)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self.failed:
            raise self.failed[0]

    def work(self, rng, steps, growing, together=None):
        try:
            if together:
                together.wait()
            for _ in range(steps):
                if self.failed:
                    return
                self.step(rng, growing)
        except Exception as error:  # handed to the main thread, which ends the run
            self.failed.append(error)

    # --- rest points

    def rest(self, number, steps, last=False):
        """Report and obey commands until one says to continue."""
        self.report(number, steps, last)
        while True:
            command = self.protocol.command()
            if command == "go":
                return
            if command in ("gc", "rest"):
                self.report(number, steps, last)
            elif command == "oom":
                self.protocol.emit("oom", error=self.provoke_oom())
            elif command.startswith("arrays "):
                self.hold_arrays(int(command.split()[1]))
                self.report(number, steps, last)
            elif command.startswith("reserve "):
                self.reserve(int(command.split()[1]))
                self.report(number, steps, last)
            elif command == "close":
                self.close()
                raise Closed
            elif command == "quit":
                self.free_all()
                self.close_devices()
                sys.exit(0)
            else:
                raise ValueError(f"unknown command {command!r}")

    def report(self, number, steps, last):
        gc.collect()
        devices = [mesh.report() for mesh in self.meshes()]
        chips = {}
        for device in devices:
            for chip in device["chips"]:
                sums = chips.setdefault(chip, dict.fromkeys(common.MEMORY_TYPES, 0))
                for memory, asked in device["asked"].items():
                    sums[memory] += asked
        self.protocol.emit("rest", n=number, steps=steps, last=last, devices=devices, asked=chips, counts=self.counts)

    def hold_arrays(self, total):
        """Most bytes are in large arrays, most arrays are small."""
        block = self.random.randbytes(1 << 20)
        for decade, percent in ((10**3, 5), (10**4, 10), (10**5, 15), (10**6, 30), (10**7, 40)):
            held = 0
            while held < total * percent // 100:
                size = int(decade * 10 ** self.random.random())
                array = bytearray(size)
                for at in range(0, size, len(block)):
                    array[at : at + len(block)] = block[: size - at]
                self.arrays.append(array)
                held += size

    def reserve(self, total):
        """Address space, as an address sanitizer's shadow has it: a page in each TiB is used."""
        room = mmap.mmap(-1, total, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
        for at in range(0, total, 1 << 40):
            room[at] = 1
        self.arrays.append(room)

    def provoke_oom(self):
        try:
            self.main.empty((1, 1, 64 << 10, 1024), config=self.main.memory_config("L1"))
        except RuntimeError as error:
            text = str(error)
            start = text.find("Out of Memory")
            return text[max(start, 0) :][:200]
        raise AssertionError("128 MiB of L1 are not out of memory")

    def free_all(self):
        for mesh in self.meshes():
            mesh.free_all()
        gc.collect()

    def close_devices(self):
        for mesh in self.submeshes:
            if self.ops_on != "main":
                self.ttnn.close_mesh_device(mesh.device)
        self.ttnn.close_mesh_device(self.main.device)

    def close(self):
        self.close_devices()
        self.protocol.emit("closed")

    # --- all of it

    def run(self):
        args = self.args
        number = done = 0
        try:
            while done < args.steps:
                steps = min(args.rest_every, args.steps - done)
                self.burst(steps, number)
                done += steps
                self.rest(number, done)
                number += 1
                if self.submeshes and self.random.random() < 0.3:
                    self.replace_submesh()
            if not args.close_with_live:
                self.free_all()
                self.rest(number, done, last=True)
            self.close()
        except Closed:
            pass
        self.protocol.command()
        self.free_all()


def run(args, protocol, ttnn):
    if args.forked:
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
            return
    # The runtime holds Python's lock while it works, so threads take turns: these shall do so all the time.
    sys.setswitchinterval(1e-6)
    workload = Workload(args, protocol, ttnn)
    protocol.emit(
        "open", pid=os.getpid(), chips=workload.main.chips, ops_on=workload.ops_on,
        meshes=[{"mesh": m.name, "chips": m.chips} for m in workload.meshes()],
    )  # fmt: skip
    workload.run()


def mesh_shape(text):
    rows, columns = text.split("x")
    return int(rows), int(columns)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--mesh", type=mesh_shape, help="open only ROWSxCOLUMNS of the cluster's chips")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rest-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--threads", type=int, default=2, help="0: on the main thread")
    parser.add_argument("--submeshes", type=int, default=2, help="how many at a time, on clusters of several chips")
    parser.add_argument("--ops-on", choices=("main", "submeshes", "both"), help="default: chosen by the seed")
    parser.add_argument(
        "--close-submeshes", choices=("empty", "live", "either"), default="either",
        help="with or without tensors on them; with, the runtime's shared memory never forgets these (seen in 0.81.1)",
    )  # fmt: skip
    parser.add_argument("--close-with-live", action="store_true", help="close the devices before freeing")
    parser.add_argument("--forked", action="store_true", help="in a child that is forked when the runtime is loaded")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for commands at rest points")
    args = parser.parse_args()

    if args.cluster == "galaxy":
        common.lengthen_sleeps()
    protocol = common.Protocol(wait=not args.no_wait)
    return common.run(protocol, lambda ttnn: run(args, protocol, ttnn))


if __name__ == "__main__":
    sys.exit(main())
