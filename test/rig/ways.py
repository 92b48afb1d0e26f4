#!/usr/bin/env python3
"""The ways in which people open devices and hold memory: a function each, which stops at rest points.

    ./rig.py run --cluster n150 ways.py --cluster n150 --no-wait               # all that run on it
    ./rig.py run --cluster n300 ways.py --cluster n300 --no-wait open_device   # one

A way opens its devices with w.opened, so that each rest lists what their allocators hold, and closes them with w.closing.
At its end everything is closed, and the last rest point of a way lists nothing.

Messages: ways (with --list: all, with where they run), start; then for each way: way (its name), rest (n, way, what, pid
of the process that holds devices, devices; waits), and way_done, or absent (this release lacks it, and why); closed; error.
"""

import contextlib
import functools
import gc
import importlib.metadata
import multiprocessing
import multiprocessing.reduction
import os
import sys
import threading
import types

sys.dont_write_bytecode = True
import common  # noqa: E402
import mock_cluster  # noqa: E402
import native  # noqa: E402

SMALL, REGION = 32768, 4 << 20  # bytes of L1_SMALL in each bank, and of the trace region


class Absent(Exception):
    """This release of the runtime, or its mock, cannot do that."""


class Way:
    """A row of the table: where a way runs, and with what."""

    def __init__(self, f, clusters, slow, env, alone):
        self.f, self.name, self.clusters = f, f.__name__, clusters
        self.slow, self.env, self.alone = slow, env, alone

    def describe(self):
        return {"way": self.name, "clusters": self.clusters, "slow": self.slow, "env": self.env, "alone": self.alone}


WAYS = {}


def way(*clusters, slow=False, env=(), alone=False):
    """Adds a way that runs on clusters. slow: without the on-device dispatcher; env: NAME=VALUE; alone: its process ends in it."""

    def add(f):
        WAYS[f.__name__] = Way(f, clusters, slow, list(env), alone)
        return f

    return add


def needs(thing, name):
    """An attribute of the runtime that not all releases have."""
    if not hasattr(thing, name):
        raise Absent(f"no {name}")
    return getattr(thing, name)


def closes_again():
    """Closing a mesh whose chips the runtime has closed with another one ends the process on the first release with mock chips."""
    if importlib.metadata.version("ttnn").startswith("0.66."):
        raise Absent("closing a mesh with closed chips ends the process")


class Lab:
    """What ways use: the runtime, the open devices, and rest points."""

    def __init__(self, args, protocol, ttnn):
        self.args, self.protocol, self.ttnn = args, protocol, ttnn
        self.shape = mock_cluster.MESH_SHAPES.get(args.cluster) or (1, ttnn.get_num_devices())
        self.meshes = []
        self.way, self.n = None, 0
        self.opened_so_far = 0

    # --- devices

    def opened(self, device, name=None):
        self.opened_so_far += 1
        mesh = common.Mesh(self.ttnn, name or f"mesh{self.opened_so_far}", device)
        self.meshes.append(mesh)
        return mesh

    def mesh(self, shape=None, name=None, **options):
        options = {"l1_small_size": SMALL, "trace_region_size": REGION, **options}
        return self.opened(self.ttnn.open_mesh_device(self.ttnn.MeshShape(*(shape or self.shape)), **options), name)

    def submesh(self, mesh, shape, *offset):
        at = [self.ttnn.MeshCoordinate(*offset)] if offset else []
        return self.opened(mesh.device.create_submesh(self.ttnn.MeshShape(*shape), *at))

    def closing(self, *meshes):
        """The meshes hold nothing from here on, whatever still refers to them."""
        for mesh in meshes:
            self.meshes.remove(mesh)

    def close(self, *meshes):
        for mesh in meshes:
            self.ttnn.close_mesh_device(mesh.device)
            self.closing(mesh)

    # --- memory

    def some(self, mesh, rounds=1):
        """Buffers of the usual kinds."""
        for n in range(1, rounds + 1):
            mesh.interleaved("DRAM", (1, 1, 64, 96 * n), "bfloat16", True)
            mesh.interleaved("L1", (1, 1, 32 * n, 320), "bfloat16", True)
            mesh.sharded("L1", "HEIGHT", (4, 2), (32, 64), (1, 1, 256, 64), "bfloat16", True)
        return mesh

    def regions(self, mesh):
        """Buffers in the regions that exist only when asked for."""
        mesh.sharded("L1_SMALL", "HEIGHT", (2, 2), (4, 64), (16, 64), "bfloat16", False)
        mesh.interleaved("TRACE", (1, 1, 32, 320), "bfloat16", True)

    # --- rest points

    def rest(self, what):
        gc.collect()
        self.n += 1
        self.protocol.emit(
            "rest", n=self.n, way=self.way, what=what, pid=os.getpid(), devices=[m.report() for m in self.meshes]
        )
        if self.protocol.command() == "quit":
            sys.exit(0)

    def run(self, one):
        self.way = one.name
        self.protocol.emit("way", way=one.name)
        try:
            one.f(self)
            if self.meshes:
                raise AssertionError(f"{one.name} leaves {[m.name for m in self.meshes]} open")
        except Absent as why:
            for mesh in reversed(self.meshes):
                self.ttnn.close_mesh_device(mesh.device)
            self.meshes.clear()
            self.protocol.emit("absent", way=one.name, why=str(why))
        self.rest("all is closed")
        self.protocol.emit("way_done", way=one.name)


# --- opening devices


def unit(w, device, close):
    """What a program does with one chip."""
    mesh = w.some(w.opened(device))
    w.rest("opened")
    mesh.operation("add")
    mesh.hold_output(mesh.operation("softmax"), "softmax")
    w.rest("an operation")
    del mesh.held[0]
    w.rest("one is freed")
    close(device)
    w.closing(mesh)
    w.rest("closed, with tensors")


@way("n150", "n300", "p150")
def open_device(w):
    unit(w, w.ttnn.open_device(device_id=0), w.ttnn.close_device)


@way("n150", "p150")
def open_device_with_regions(w):
    device = w.ttnn.open_device(device_id=0, l1_small_size=SMALL, trace_region_size=REGION)
    mesh = w.some(w.opened(device))
    w.regions(mesh)
    w.rest("opened")
    w.ttnn.close_device(device)
    w.closing(mesh)


@way("n150")
def manage_device(w):
    with w.ttnn.manage_device(device_id=0) as device:
        mesh = w.some(w.opened(device))
        w.rest("within the block")
    w.closing(mesh)
    w.rest("the block is left, with tensors")


@way("n150", "n300")
def create_device(w):
    unit(w, w.ttnn.CreateDevice(0, l1_small_size=SMALL), w.ttnn.close_device)


@way("n300", "t3k")
def create_devices(w):
    devices = w.ttnn.CreateDevices(list(range(w.shape[0] * w.shape[1])))
    meshes = [w.some(w.opened(d), rounds=1 + i % 3) for i, d in devices.items()]
    w.rest("opened")
    meshes[-1].operation("add")
    meshes[0].held.pop()
    w.rest("an operation on the last")
    w.ttnn.CloseDevices(devices)
    w.closing(*meshes)


@way("n300")
def one_by_one(w):
    """The second chip is reached through the first: the runtime closes both with either."""
    closes_again()
    for first in (0, 1):
        devices = [w.ttnn.open_device(device_id=i) for i in range(2)]
        meshes = [w.some(w.opened(d)) for d in devices]
        w.rest("opened")
        w.ttnn.close_device(devices[first])
        w.closing(*meshes)
        w.rest(f"the device of chip {first} is closed")
        w.ttnn.close_device(devices[1 - first])
        w.rest("both are closed")
        del devices, meshes  # the object whose close did nothing closes whatever has the chip open when it is destroyed
        gc.collect()


@way("n300")
def default_device(w):
    """A device that is set as the default one, and that operations find by themselves."""
    device = w.ttnn.open_device(device_id=0)
    w.ttnn.SetDefaultDevice(device)
    mesh = w.some(w.opened(device))
    w.rest("opened")
    needs(w.ttnn._ttnn.device, "ClearDefaultDevice")()
    w.ttnn.close_device(device)
    w.closing(mesh)


@way("n300", "t3k")
def open_mesh_device(w):
    mesh = w.mesh(name="main")
    w.some(mesh, rounds=3)
    w.regions(mesh)
    mesh.semaphore((3, 2))
    w.rest("opened")
    mesh.hold_output(mesh.operation("add"), "add")
    w.rest("an operation")
    w.close(mesh)


@way("t3k")
def offset_and_physical_ids(w):
    closes_again()
    ttnn = w.ttnn
    meshes = [
        w.mesh((1, 2), offset=ttnn.MeshCoordinate(0, 2)),
        w.mesh((1, 1), physical_device_ids=[3]),
    ]
    for mesh in meshes:
        w.some(mesh)
    w.rest("two meshes")
    meshes[1].free_all()
    w.rest("one holds nothing")
    w.close(*meshes)  # closing one takes chips of the other with it, which the mock does not survive


@way("t3k")
def reshaped_mesh(w):
    mesh = w.mesh((2, 2), offset=w.ttnn.MeshCoordinate(0, 1))
    w.some(mesh)
    mesh.device.reshape(w.ttnn.MeshShape(1, 4))
    w.some(mesh)
    w.rest("reshaped")
    w.close(mesh)


@way("n300", "t3k")
def mesh_and_unit(w):
    """A mesh of some chips, and a chip that is opened by itself."""
    closes_again()
    mesh = w.some(w.mesh((1, 1), physical_device_ids=[0]))
    device = w.ttnn.open_device(device_id=1)
    one = w.some(w.opened(device), rounds=2)
    w.rest("both")
    w.ttnn.close_device(device)
    w.closing(one)
    if not native.chip_is_open(mesh.device, 0):  # the runtime closes chips beside the one that it is asked to close
        w.closing(mesh)
        w.rest("one is closed, and with it the other's chip")
        w.ttnn.close_mesh_device(mesh.device)
    else:
        w.rest("one is closed")
        w.close(mesh)


# --- submeshes


@way("n300", "t3k")
def submesh_closed_first(w):
    mesh = w.some(w.mesh())
    part = w.some(w.submesh(mesh, (1, 1)))
    w.rest("a submesh")
    w.close(part)
    w.rest("the submesh is closed, with tensors")
    w.some(mesh)
    w.rest("the mesh goes on")
    w.close(mesh)


@way("n300", "t3k")
def submesh_object_forgotten(w):
    mesh = w.some(w.mesh())
    part = w.some(w.submesh(mesh, (1, 1)))
    w.rest("a submesh")
    part.free_all()
    part.device = None
    w.closing(part)
    del part
    w.rest("its object is gone")
    w.close(mesh)


@way("t3k")
def create_submeshes(w):
    mesh = w.some(w.mesh())
    parts = [w.opened(d) for d in mesh.device.create_submeshes(w.ttnn.MeshShape(1, 2))]
    within = w.submesh(parts[0], (1, 1))
    for n, part in enumerate([*parts, within]):
        w.some(part, rounds=1 + n % 2)
    w.rest("four submeshes, and one within the first")
    w.close(within, parts[0])
    w.rest("the innermost and its parent are closed")
    w.ttnn.close_mesh_device(mesh.device)
    w.closing(mesh, *parts[1:])
    w.rest("the mesh is closed")


@way("n300")
def operations_on_submesh(w):
    mesh = w.some(w.mesh())
    part = w.submesh(mesh, (1, 1))
    for name in ("add", "softmax", "matmul"):
        part.hold_output(part.operation(name), name)
    w.rest("operations on it")
    w.close(part)
    w.rest("it is closed")
    w.close(mesh)


# --- sizes


@way("n150")
def two_command_queues(w):
    ttnn = w.ttnn
    mesh = w.some(w.mesh(num_command_queues=2))
    w.rest("opened")
    with needs(ttnn, "command_queue")(1):
        mesh.hold_output(mesh.operation("add"), "add")
        mesh.hold_output(mesh.operation("multiply"), "multiply")
    w.rest("operations on the second queue")
    w.close(mesh)


# --- memory


@way("n150", "t3k")
def global_circular_buffers(w):
    ttnn = w.ttnn
    create = needs(ttnn, "create_global_circular_buffer")
    mesh = w.some(w.mesh())
    one = ttnn.CoreRange(ttnn.CoreCoord(4, 4), ttnn.CoreCoord(4, 4))
    two = ttnn.CoreRange(ttnn.CoreCoord(2, 3), ttnn.CoreCoord(2, 4))
    mapping = [(ttnn.CoreCoord(1, 1), ttnn.CoreRangeSet({one})), (ttnn.CoreCoord(2, 2), ttnn.CoreRangeSet({two}))]
    kept = [create(mesh.device, mapping, 3200), create(mesh.device, mapping, 6400)]
    w.rest("two")
    kept.pop(0)
    w.rest("one")
    w.close(mesh)


@way("n150", "t3k")
def global_semaphores(w):
    mesh = w.some(w.mesh())
    for cores in ((1, 1), (3, 2), (8, 7)):
        mesh.semaphore(cores)
    w.rest("three")
    mesh.held.pop()
    w.rest("two")
    w.close(mesh)


def cores(ttnn, *ranges):
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(x0, y0), ttnn.CoreCoord(x1, y1)) for x0, y0, x1, y1 in ranges})


@way("n150")
def range_lockstep_allocation(w):
    config = sharded_config(w, "experimental_set_range_lockstep_allocation")
    mesh = w.some(w.mesh())
    kept = [mesh.empty((1, 1, 256, 64), config=config(mesh)) for _ in range(2)]
    w.rest("two")
    kept.pop(0)
    w.rest("one")
    w.close(mesh)
    kept.clear()


def sharded_config(w, setter):
    needs(w.ttnn.MemoryConfig, setter)

    def config(mesh):
        plain = mesh.memory_config("L1", "HEIGHT", (4, 2), (32, 64))
        return getattr(plain, setter)(True) or plain

    return config


@way("n150", "t3k")
def sharded(w):
    """In every way, over DRAM's banks and the cores of L1."""
    ttnn = w.ttnn
    mesh = w.mesh()
    for memory, across in (("DRAM", (4, 1)), ("L1", (4, 2))):
        n = across[0] * across[1]
        mesh.sharded(memory, "HEIGHT", across, (32, 64), (1, 1, 32 * n, 64), "bfloat16", True)
        mesh.sharded(memory, "WIDTH", across, (64, 32), (1, 1, 64, 32 * n), "bfloat16", True)
    mesh.sharded("L1", "BLOCK", (4, 2), (32, 64), (1, 1, 64, 256), "bfloat16", True)
    w.rest("by height, width and block")
    spec = needs(ttnn, "NdShardSpec")
    kept = []
    for memory in ("DRAM", "L1"):
        for shard in ([1, 32, 32], [2, 64, 96]):
            config = ttnn.MemoryConfig(getattr(ttnn.BufferType, memory), spec(ttnn.Shape(shard), mesh.cores(4, 1)))
            kept.append(mesh.empty((3, 64, 96), config=config))
    w.rest("in many dimensions")
    del kept[1]
    w.rest("one is freed")
    w.close(mesh)


@way("n150")
def resharded(w):
    ttnn = w.ttnn
    mesh = w.mesh()
    first = mesh.empty((1, 1, 256, 64), config=mesh.memory_config("L1", "HEIGHT", (4, 2), (32, 64)))
    second = ttnn.reshard(first, mesh.memory_config("L1", "HEIGHT", (2, 2), (64, 64)))
    third = ttnn.sharded_to_interleaved(second)
    fourth = ttnn.interleaved_to_sharded(third, mesh.memory_config("L1", "BLOCK", (2, 4), (64, 32)))
    w.rest("four layouts")
    del second, third
    w.rest("two are freed")
    ttnn.deallocate(first)
    ttnn.deallocate(fourth)
    w.close(mesh)


@way("n150", "n300")
def moved(w):
    """Moved to a lower or higher address, over what it was."""
    ttnn = w.ttnn
    mesh = w.mesh()
    config = mesh.memory_config("L1")
    before, tensor = mesh.empty((1, 1, 64, 64), config=config), mesh.empty((1, 1, 64, 64), config=config)
    w.rest("before")
    del before
    gc.collect()
    tensor = ttnn.move(tensor)
    w.rest("moved")
    large = mesh.empty((1, 1, 320, 320))
    tensor = needs(ttnn, "reallocate")(tensor)
    large = ttnn.reallocate(large)
    w.rest("reallocated")
    del tensor, large
    w.close(mesh)


@way("n150", "n300")
def views(w):
    """Tensors that share a buffer."""
    ttnn = w.ttnn
    mesh = w.mesh()
    tensor = mesh.empty((1, 1, 64, 64))
    shared = [ttnn.reshape(tensor, (1, 2, 32, 64)), ttnn.unsqueeze(ttnn.squeeze(tensor, 0), 0)]
    if hasattr(ttnn, "view"):
        shared.append(ttnn.view(tensor, (2, 1, 32, 64)))
    other = mesh.empty((1, 1, 64, 64))
    w.rest("views")
    del tensor
    w.rest("the first is gone")
    ttnn.deallocate(shared.pop())
    w.rest("a view is deallocated")
    shared.clear()
    w.rest("all views are gone")
    del other
    w.close(mesh)


@way("n150", "t3k")
def deallocated(w):
    ttnn = w.ttnn
    mesh = w.some(w.mesh())
    tensors = [mesh.empty((1, 1, 64, 64 * n)) for n in range(1, 4)]
    view = ttnn.reshape(tensors[0], (1, 2, 32, 64))
    w.rest("before")
    ttnn.deallocate(tensors[0], force=False)
    w.rest("one that has a view, without force")
    ttnn.deallocate(view, force=True)
    tensors[1].deallocate(True)
    w.rest("two with force")
    again = mesh.empty((1, 1, 64, 64))
    w.rest("one is allocated in their place, while they are referenced")
    tensors.clear()
    del view
    w.rest("they are gone")
    del again
    w.close(mesh)


@way("n150")
def out_of_memory(w):
    mesh = w.some(w.mesh())
    for memory in ("L1", "DRAM"):
        with contextlib.suppress(RuntimeError):
            mesh.empty((1, 1, 1 << 20, 16 << 10), config=mesh.memory_config(memory))
            raise AssertionError("32 GiB found room")
    w.rest("two failed")
    w.some(mesh)
    w.rest("and it goes on")
    w.close(mesh)


@way("n150", "n300")
def from_host(w):
    """Created, filled and copied from the host."""
    ttnn = w.ttnn
    mesh = w.mesh()
    kept = [
        ttnn.zeros([1, 1, 32, 96], dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh.device),
        ttnn.full([1, 1, 64, 32], 1.0, dtype=ttnn.float32, layout=ttnn.ROW_MAJOR_LAYOUT, device=mesh.device),
        ttnn.allocate_tensor_on_device(ttnn.Shape([1, 1, 32, 32]), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh.device),
    ]
    w.rest("on the device")
    kept.append(ttnn.to_device(ttnn.from_device(kept[0]), mesh.device, memory_config=ttnn.L1_MEMORY_CONFIG))
    w.rest("there and back")
    del kept[0]
    w.rest("one is freed")
    kept.clear()
    w.close(mesh)


@way("n150", "t3k")
def threads(w):
    """Allocation and freeing from threads that come and go."""
    mesh = w.mesh()
    tensors, lock = [], threading.Lock()

    def work(n):
        for i in range(12):
            tensor = mesh.empty((1, 1, 32, 32 * (1 + (n + i) % 5)), config=mesh.memory_config(("DRAM", "L1")[i % 2]))
            with lock:
                tensors.append(tensor)
                if i % 3 == 2:
                    tensors.pop(0)

    for what in ("four threads", "four others"):
        running = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        w.rest(what)
    tensors.clear()
    w.close(mesh)


# --- programs


@way("n150", "n300")
def program_cache(w):
    mesh = w.mesh()
    device = mesh.device
    for name in ("add", "softmax", "matmul"):
        mesh.operation(name)
    w.rest("three are cached")
    device.clear_program_cache()
    w.rest("cleared")
    mesh.operation("add")
    device.disable_and_clear_program_cache()
    mesh.operation("multiply")
    w.rest("off")
    device.enable_program_cache()
    mesh.operation("layer_norm")
    mesh.operation("layer_norm")
    w.rest("on again")
    w.close(mesh)


@way("n150")
def kernels_by_generic_op(w):
    import programs

    needs(w.ttnn, "generic_op")
    needs(w.ttnn, "KernelDescriptor")
    mesh = w.mesh()
    tensor = mesh.empty((1, 1, 64, 96))
    programs.generic(mesh, tensor)
    w.rest("two kernels on three ranges of cores")
    programs.generic(mesh, tensor)
    w.rest("again")
    w.close(mesh)


@way("n300", "t3k")
def a_program_a_chip(w):
    import mesh_programs

    ttnn = w.ttnn
    descriptor_of = needs(ttnn, "MeshProgramDescriptor")
    mesh = w.mesh()
    rows, columns = w.shape
    tensors = [mesh.empty((1, 1, 32, 32)) for _ in range(2)]
    descriptor = descriptor_of()
    for i, (y, x) in enumerate((y, x) for y in range(rows) for x in range(columns)):
        at = ttnn.MeshCoordinate(y, x)
        descriptor[ttnn.MeshCoordinateRange(at, at)] = mesh_programs.program(ttnn, mesh, mesh_programs.PAGE * (1 + i))
    ttnn.generic_op(tensors, descriptor)
    w.rest("each chip has its own")
    mesh.device.clear_program_cache()
    w.rest("cleared")
    w.close(mesh)


# --- traces


def capture(w, mesh):
    """A trace of allocations alone: the mock crashes at an operation within."""
    ttnn = w.ttnn
    if os.environ.get("TT_METAL_SLOW_DISPATCH_MODE") == "1":
        raise Absent("slow dispatch captures no traces")
    trace = ttnn.begin_trace_capture(mesh.device, cq_id=0)
    within = mesh.empty((1, 1, 128, 128))
    w.rest("within a capture")
    del within
    ttnn.end_trace_capture(mesh.device, trace, cq_id=0)
    return trace


@way("n150")
def trace_released(w):
    mesh = w.some(w.mesh())
    trace = capture(w, mesh)
    w.rest("captured")
    kept = mesh.empty((1, 1, 128, 128))
    w.rest("allocated after it")
    w.ttnn.release_trace(mesh.device, trace)
    w.rest("released")
    del kept
    w.close(mesh)


@way("n150")
def traces_kept(w):
    """Until the device closes, as servers do."""
    mesh = w.some(w.mesh())
    kept = [capture(w, mesh) for _ in range(2)]
    w.rest("two are captured")
    mesh.free_all()
    w.close(mesh)
    del kept


@way("n150")
def captured_without_dispatch(w):
    """The graph's capture allocates nothing."""
    # Its Python side wants torch, of which a name is enough here.
    torch = types.ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    sys.modules.setdefault("torch", torch)
    import ttnn.graph as graph

    mesh = w.some(w.mesh())
    graph.begin_graph_capture(graph.RunMode.NO_DISPATCH)
    hooked = mesh.empty((1, 1, 64, 64))
    output = mesh.operation("add")
    w.rest("within")
    graph.end_graph_capture()
    w.rest("captured")
    real = mesh.empty((1, 1, 64, 64))
    w.rest("a real one, beside what was hooked")
    del hooked, output
    w.rest("what was hooked is gone")
    del real
    w.close(mesh)


@way("n300", "t3k")
def mesh_closed_first(w):
    """The submesh, with tensors, and those of the mesh are referenced when the chips are opened again.

    The runtime closes chips with the last object of their meshes.
    """
    closes_again()
    mesh = w.some(w.mesh())
    part = w.some(w.submesh(mesh, (1, 1)))
    w.rest("a submesh")
    w.ttnn.close_mesh_device(mesh.device)
    w.closing(mesh, part)
    w.rest("the mesh is closed, with tensors")
    other = w.some(w.mesh(), rounds=2)
    w.rest("the chips are open again")
    w.close(other)
    w.rest("and closed again")
    part.free_all()
    mesh.free_all()
    w.rest("what was referenced is gone")
    mesh.device = part.device = None
    gc.collect()
    w.rest("and the objects are")


@way("n150", "t3k")
def all_deallocated_at_once(w):
    ttnn = w.ttnn
    mesh = w.some(w.mesh(), rounds=2)
    w.regions(mesh)
    w.rest("before")
    ttnn._ttnn.device.deallocate_buffers(mesh.device)
    mesh.all_freed()
    w.rest("all are freed, and referenced")
    kept = [mesh.empty((1, 1, 32, 320 * n), config=mesh.memory_config("L1")) for n in (1, 2)]
    w.rest("others are in their place")
    w.close(mesh)
    del kept


# --- processes


@way("n150", alone=True)
def exits_without_closing(w):
    w.some(w.mesh())
    w.rest("open")
    raise SystemExit(0)


@way("n150", alone=True)
def throws(w):
    w.some(w.mesh())
    w.rest("open")
    raise KeyError("nobody catches this")


@way("n150", alone=True)
def is_killed(w):
    w.some(w.mesh())
    w.rest("open")
    os.kill(os.getpid(), 9)


@way("n150", alone=True)
def forked(w):
    """The runtime is loaded, and opened by a child only."""
    child = os.fork()
    if child == 0:
        mesh = w.some(w.mesh())
        w.rest("the child's")
        mesh.operation("add")
        w.rest("an operation")
        w.close(mesh)
        w.rest("closed")
        os._exit(0)
    os.waitpid(child, 0)


@way("n150", alone=True)
def forked_with_devices_open(w):
    """The child uses nothing that it inherits."""
    mesh = w.some(w.mesh())
    w.rest("before")
    wait, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(wait, 1)
        os._exit(0)
    w.rest("a child lives")
    mesh.held.pop()
    w.rest("one is freed, of which the child has a copy")
    os.close(end)
    os.waitpid(child, 0)
    w.rest("the child has ended")
    w.close(mesh)


class Descriptor:
    """A file descriptor that a spawned child gets, too."""

    def __init__(self, fd):
        self.fd = fd

    def __getstate__(self):
        return multiprocessing.reduction.DupFd(self.fd)

    def __setstate__(self, sent):
        self.fd = sent.detach()


def worker(args, stdin, stdout):
    os.dup2(stdin.fd, 0)
    os.dup2(stdout.fd, 1)
    sys.stdin = os.fdopen(0)
    protocol = common.Protocol()

    def work(ttnn):
        lab = Lab(args, protocol, ttnn)
        lab.way = "spawned"
        open_device(lab)

    sys.exit(common.run(protocol, work))


@way("n150", alone=True)
def spawned(w):
    """multiprocessing's other way: another interpreter, which begins with nothing, opens a device."""
    child = multiprocessing.get_context("spawn").Process(
        target=worker, args=(w.args, Descriptor(0), Descriptor(w.protocol.out.fileno()))
    )
    child.start()
    child.join()
    if child.exitcode != 0:
        raise AssertionError(f"the child ended with {child.exitcode}")


@way("n150", "n300")
def reopened_with_other_sizes(w):
    for options in (
        {"l1_small_size": 0, "trace_region_size": 0},
        {"l1_small_size": 16384, "trace_region_size": 1 << 20},
        {"l1_small_size": 65536, "trace_region_size": 0},
        {"worker_l1_size": 700_000},
    ):
        mesh = w.some(w.mesh(**options))
        if options.get("l1_small_size"):
            mesh.sharded("L1_SMALL", "HEIGHT", (2, 2), (4, 64), (16, 64), "bfloat16", False)
        w.rest(str(options))
        w.close(mesh)


@way("n150", "p150")
def prefetcher_pipes(w):
    ttnn = w.ttnn
    create = needs(ttnn.experimental, "create_prefetcher_pipe_space")
    mesh = w.some(w.mesh())
    space = create(mesh.device, sender_cores=mesh.cores(1, 1), receiver_domain=cores(ttnn, (1, 0, 2, 0)), ring_size=1024, max_receivers_per_pipe=2)
    w.rest("a space")
    pipe = space.create_pipe(ttnn.CoreCoord(0, 0), cores(ttnn, (1, 0, 2, 0)))
    mesh.hold_output(mesh.operation("add"), "add")
    w.rest("a pipe, and an operation")
    del pipe, space
    w.rest("both are gone")
    w.close(mesh)


def run(args, protocol, ttnn):
    lab = Lab(args, protocol, ttnn)
    for name in args.ways or [one.name for one in WAYS.values() if runs(one, args) and not one.alone]:
        lab.run(WAYS[name])
    protocol.emit("closed")
    protocol.command()


def runs(one, args):
    slow = os.environ.get("TT_METAL_SLOW_DISPATCH_MODE") == "1"
    return args.cluster in one.clusters and one.slow == slow and all(os.environ.get(*e.split("=")[:1]) for e in one.env)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("ways", nargs="*", help="default: all that run here in one process")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for commands at rest points")
    args = parser.parse_args()
    protocol = common.Protocol(wait=not args.no_wait)
    if args.list:
        protocol.emit("ways", ways=[one.describe() for one in WAYS.values()])
        return 0
    return common.run(protocol, functools.partial(run, args, protocol))


if __name__ == "__main__":
    sys.exit(main())
