"""What the rig's workloads share: the protocol, devices, tensors of every kind, and what they ask for.

Sizes are computed here from shapes, types and layouts alone, so that they can be held against what the
runtime's allocator says, and against what a tracer sees.
"""

import argparse
import collections
import ctypes
import importlib.metadata
import json
import os
import sys
import traceback

import mock_cluster

TILE = 32
TILE_BYTES = {
    "bfloat16": 2048, "float32": 4096, "bfloat8_b": 1088, "bfloat4_b": 576,
    "uint8": 1024, "uint16": 2048, "uint32": 4096, "int32": 4096,
}  # fmt: skip
ELEMENT_BYTES = {"bfloat16": 2, "float32": 4, "uint8": 1, "uint16": 2, "uint32": 4, "int32": 4}
MEMORY_TYPES = ("DRAM", "L1", "L1_SMALL", "TRACE")

# Operations that run on every mock cluster. In fast dispatch the mock's n300 and t3k reject programs that
# use the whole 8x8 grid (exp, relu, gelu, concat, ...), whatever the size of the tensors.
OPERATIONS = (
    "add", "multiply", "subtract", "softmax", "layer_norm", "rms_norm", "slice", "untilize", "tilize", "where",
    "repeat", "matmul", "transpose", "typecast", "clone", "to_memory_config",
)  # fmt: skip


def operations():
    """Those of OPERATIONS that run on every mock cluster with this release: in 0.76 repeat uses the whole grid."""
    whole = ("repeat",) if importlib.metadata.version("ttnn").startswith("0.76.") else ()
    return [name for name in OPERATIONS if name not in whole]


class Protocol:
    """JSON lines on stdout, commands as lines on stdin."""

    def __init__(self, wait=True):
        # The runtime logs to stdout, and from C++ too. The protocol takes the real stdout away and leaves
        # stderr in its place, before the runtime is loaded.
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.wait = wait

    def emit(self, event, **fields):
        self.out.write(json.dumps({"event": event, **fields}) + "\n")
        self.out.flush()

    def command(self):
        """The next command: "go" when nobody is to be waited for, "quit" when the other side has gone."""
        if not self.wait:
            return "go"
        line = sys.stdin.readline()
        return line.strip() if line else "quit"


def arguments(doc):
    """A parser of what every workload takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", required=True, choices=[*mock_cluster.CLUSTERS, "simulator"])
    return parser


def main(doc, workload):
    """Runs a workload without options of its own: workload(args, protocol, ttnn). Returns an exit code."""
    args, protocol = arguments(doc).parse_args(), Protocol()
    return run(protocol, lambda ttnn: workload(args, protocol, ttnn))


def run(protocol, workload):
    """Runs a workload, which is given the runtime, from its first message on; returns an exit code."""
    protocol.emit("start", pid=os.getpid())
    try:
        import ttnn  # takes a while, and prints: only after the protocol has its stdout

        workload(ttnn)
    except Exception as error:
        traceback.print_exc()
        protocol.emit("error", error=f"{type(error).__name__}: {error}"[:1000])
        return 1
    return 0


def lengthen_sleeps():
    """Lets sleeps of the threads that begin from now on take up to 5 ms longer.

    Releases to 0.75 have several threads for each chip that sleep for microseconds, again and again: the 250 of a
    galaxy leave two processors no time for anything else.
    """
    PR_SET_TIMERSLACK = 29
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 5_000_000, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_TIMERSLACK")


def shared_memory():
    """The runtime's accounts in shared memory that this process uses."""
    with open("/proc/self/maps") as file:
        return {line.split(maxsplit=5)[5].strip() for line in file if "/dev/shm/tt_device_" in line}


def round_up(number, multiple):
    return -(-number // multiple) * multiple


def volume(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product


def requested_bytes(shape, dtype, tiled, shard_width=None):
    """The bytes a tensor asks for on every chip it lies on, before the allocator rounds anything.

    Tiles are padded in both directions; rows are only padded to a whole number of shards.
    """
    shape = list(shape)
    if not tiled:
        if shard_width:
            shape[-1] = round_up(shape[-1], shard_width)
        return volume(shape) * ELEMENT_BYTES[dtype]
    if len(shape) == 1:
        shape = [1, *shape]
    height, width = (round_up(extent, TILE) // TILE for extent in shape[-2:])
    return volume(shape[:-2]) * height * width * TILE_BYTES[dtype]


def dtype_name(dtype):
    return str(dtype).rsplit(".", 1)[-1].lower()


class Held:
    """A buffer that the workload keeps."""

    def __init__(self, thing, memory, kind, asked, address):
        self.thing = thing
        self.memory = memory
        self.kind = kind
        self.asked = asked
        self.address = address


class Mesh:
    """A mesh device (or a submesh: its allocator is independent of its parent's) and what is held on it."""

    def __init__(self, ttnn, name, device):
        self.ttnn = ttnn
        self.name = name
        self.device = device
        self.chips = list(device.get_device_ids())
        self.held = []
        # What the allocator has freed and its report still lists, by type, address and size.
        self.freed, self.outlived = collections.Counter(), []
        grid = device.compute_with_storage_grid_size()
        # Never more than the smallest grid that a mock chip has in fast dispatch.
        self.grid = (min(grid.x, 8), min(grid.y, 7))
        self.dram_banks = device.dram_grid_size().x if hasattr(device, "dram_grid_size") else 0

    # --- memory

    def memory_config(self, memory, sharding=None, cores=None, shard=None):
        ttnn = self.ttnn
        buffer_type = getattr(ttnn.BufferType, memory)
        if sharding is None:
            return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, buffer_type)
        spec = ttnn.ShardSpec(self.cores(*cores), list(shard), ttnn.ShardOrientation.ROW_MAJOR)
        return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, sharding + "_SHARDED"), buffer_type, spec)

    def cores(self, x, y):
        ttnn = self.ttnn
        return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x - 1, y - 1))})

    def empty(self, shape, dtype="bfloat16", tiled=True, config=None):
        ttnn = self.ttnn
        return ttnn.empty(
            list(shape),
            dtype=getattr(ttnn, dtype),
            layout=ttnn.TILE_LAYOUT if tiled else ttnn.ROW_MAJOR_LAYOUT,
            device=self.device,
            memory_config=config or ttnn.DRAM_MEMORY_CONFIG,
        )

    def hold_tensor(self, tensor, memory, kind, asked):
        held = Held(tensor, memory, kind, asked, tensor.buffer_address())
        self.held.append(held)
        return held

    def interleaved(self, memory, shape, dtype, tiled):
        tensor = self.empty(shape, dtype, tiled, self.memory_config(memory))
        kind = f"{memory} interleaved {'tile' if tiled else 'row'} {dtype} {list(shape)}"
        return self.hold_tensor(tensor, memory, kind, requested_bytes(shape, dtype, tiled))

    def sharded(self, memory, sharding, cores, shard, shape, dtype, tiled):
        tensor = self.empty(shape, dtype, tiled, self.memory_config(memory, sharding, cores, shard))
        kind = f"{memory} {sharding.lower()} {'tile' if tiled else 'row'} {dtype} {list(shape)} by {list(shard)}"
        return self.hold_tensor(tensor, memory, kind, requested_bytes(shape, dtype, tiled, shard[1]))

    def semaphore(self, cores):
        """A global semaphore is an L1 buffer too: four bytes on every core."""
        ttnn = self.ttnn
        semaphore = ttnn.create_global_semaphore(self.device, self.cores(*cores), 0)
        held = Held(
            semaphore, "L1", f"semaphore on {list(cores)}", 4 * cores[0] * cores[1],
            ttnn.get_global_semaphore_address(semaphore),
        )  # fmt: skip
        self.held.append(held)
        return held

    def free_all(self):
        self.held.clear()

    # --- operations

    def operation(self, name, height=64, width=96, memory="DRAM"):
        """Run one operation on fresh inputs; returns its output. The inputs are gone afterwards."""
        ttnn = self.ttnn
        config = self.memory_config(memory)
        a = self.empty((1, 1, height, width), config=config)
        if name in ("add", "multiply", "subtract"):
            return getattr(ttnn, name)(a, self.empty((1, 1, height, width)), memory_config=config)
        if name == "where":
            return ttnn.where(a, a, self.empty((1, 1, height, width)))
        if name == "softmax":
            return ttnn.softmax(a, dim=-1)
        if name == "slice":
            return ttnn.slice(a, [0, 0, 0, 0], [1, 1, TILE, TILE])
        if name == "tilize":
            return ttnn.tilize(self.empty((1, 1, height, width), tiled=False))
        if name == "repeat":
            return ttnn.repeat(a, ttnn.Shape([1, 1, 2, 1]))
        if name == "matmul":
            return ttnn.matmul(a, self.empty((1, 1, width, TILE)))
        if name == "transpose":
            return ttnn.transpose(a, -2, -1)
        if name == "typecast":
            return ttnn.typecast(a, ttnn.float32)
        if name == "to_memory_config":
            return ttnn.to_memory_config(a, self.memory_config("DRAM" if memory == "L1" else "L1"))
        return getattr(ttnn, name)(a)

    def hold_output(self, tensor, name):
        memory = str(tensor.memory_config().buffer_type).rsplit(".", 1)[-1]
        tiled = tensor.layout == self.ttnn.TILE_LAYOUT
        asked = requested_bytes(list(tensor.shape), dtype_name(tensor.dtype), tiled)
        return self.hold_tensor(tensor, memory, f"output of {name}", asked)

    # --- what the runtime says

    def view(self, memory):
        return self.ttnn.get_memory_view(self.device, getattr(self.ttnn.BufferType, memory))

    def reserved_per_bank(self, memory):
        return self.view(memory).total_bytes_allocated_per_bank

    def reported(self):
        """The buffers that the runtime lists, without those that it freed in one call."""
        freed, live = self.freed.copy(), []
        for buffer in self.ttnn._ttnn.reports.get_buffers(self.device):
            key = (memory_name(buffer), buffer.address, buffer.max_size_per_bank)
            if freed[key] > 0:
                freed[key] -= 1
            else:
                live.append(buffer)
        return live

    def all_freed(self):
        """All buffers of the allocator were freed in one call: its blocks are free, and the report lists their objects still."""
        for buffer in self.reported():
            self.freed[memory_name(buffer), buffer.address, buffer.max_size_per_bank] += 1
        self.outlived, self.held = self.held, []

    def report(self):
        """The runtime's own account of this mesh, with what the workload knows about each buffer."""
        known = {(held.memory, held.address): held for held in self.held}
        views, buffers, asked, others = {}, [], dict.fromkeys(MEMORY_TYPES, 0), 0
        reserved = {}
        reported = self.reported()
        for memory in MEMORY_TYPES:
            view = self.view(memory)
            views[memory] = {
                "num_banks": view.num_banks,
                "total_bytes_per_bank": view.total_bytes_per_bank,
                "allocated_per_bank": view.total_bytes_allocated_per_bank,
                "largest_free_per_bank": view.largest_contiguous_bytes_free_per_bank,
            }
            reserved[memory], views[memory]["base"] = self.blocks(view, [b for b in reported if memory_name(b) == memory])
        for buffer in reported:
            memory = memory_name(buffer)
            held = known.pop((memory, buffer.address), None)
            entry = {
                "type": memory,
                "address": buffer.address,
                "bytes_per_bank": buffer.max_size_per_bank,
                "reserved_per_bank": reserved[memory].get(buffer.address),
                "asked": held.asked if held else None,
                "kind": held.kind if held else None,
            }
            buffers.append(entry)
            if held:
                asked[memory] += held.asked
            else:
                others += 1
        if known:
            raise AssertionError(f"{self.name}: the runtime does not report {[h.kind for h in known.values()]}")
        return {
            "mesh": self.name,
            "id": self.device.id(),
            "chips": self.chips,
            "buffers": buffers,
            "asked": asked,
            "others": others,
            "views": views,
            "programs": self.device.num_program_cache_entries(),
        }

    @staticmethod
    def blocks(view, buffers):
        """What the allocator took for each buffer, by address, and the address where a bank begins, if there are any.

        The report's own size leaves out the rounding of pages and blocks. The allocator's block table has
        it, with offsets in place of addresses; in order, the two lists are the same up to one constant.
        """
        try:
            blocks = view.block_table
        except TypeError:  # some releases (0.72) do not export the type of it
            return {}, None
        table = sorted((int(b["address"]), int(b["size"])) for b in blocks if b["allocated"] == "yes")
        addresses = sorted(b.address for b in buffers)
        bases = {address - offset for address, (offset, _) in zip(addresses, table)}
        if len(table) != len(addresses) or len(bases) > 1:
            raise AssertionError(f"blocks {table} do not match buffers {addresses}")
        return {address: size for address, (_, size) in zip(addresses, table)}, next(iter(bases), None)


def memory_name(buffer):
    return str(buffer.buffer_type).rsplit(".", 1)[-1]


def open_mesh(ttnn, shape):
    """A mesh with all four kinds of memory: two of them exist only when asked for."""
    device = ttnn.open_mesh_device(ttnn.MeshShape(*shape), l1_small_size=32768, trace_region_size=4 << 20)
    return Mesh(ttnn, "main", device)
