"""Calls functions of the runtime that have no name in Python, on its own objects: what tests hold numbers against."""

import ctypes

ALLOCATOR = "_ZNK2tt8tt_metal11distributed10MeshDevice14allocator_implEv"
CHIP_ALLOCATOR = "_ZNK2tt8tt_metal6Device14allocator_implEv"
CHIP = "_ZNK2tt8tt_metal11distributed10MeshDevice10get_deviceEi"
MESH_IS_OPEN = "_ZNK2tt8tt_metal11distributed10MeshDevice14is_initializedEv"
RANGES = "_ZNK2tt8tt_metal13AllocatorImpl23get_l1_allocated_rangesEN4ttsl10StrongTypeIjNS0_14AllocatorIDTagEEE"
SHRINK = "_ZN2tt8tt_metal13AllocatorImpl21shrink_allocator_sizeERKNS0_10BufferTypeEmb"
RESET = "_ZN2tt8tt_metal13AllocatorImpl20reset_allocator_sizeERKNS0_10BufferTypeE"

L1 = 1
MOST_VIRTUAL = 64  # is_initialized is among the first


def library():
    """The runtime, which is loaded."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libtt_metal.so" in line)
    return ctypes.CDLL(path)


def word(address):
    return ctypes.c_uint64.from_address(address).value


def pointer(instance):
    """The C++ object of a nanobind instance, which is behind a pointer."""
    offset = ctypes.c_int32.from_address(id(instance) + object.__basicsize__).value
    return word(id(instance) + offset)


def chip_is_open(device, chip):
    """Whether a chip of a mesh is open. Its object exists either way."""
    runtime, size = library(), ctypes.sizeof(ctypes.c_uint64)
    get, is_open = runtime[CHIP], ctypes.cast(runtime[MESH_IS_OPEN], ctypes.c_void_p).value
    get.restype = ctypes.c_uint64
    one = get(ctypes.c_uint64(pointer(device)), ctypes.c_int(chip))
    # The chip's own function has no name outside of the runtime. It is in the same place of its class's virtual functions.
    meshes, chips = word(pointer(device)), word(one)
    place = next(i for i in range(MOST_VIRTUAL) if word(meshes + size * i) == is_open)
    return ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint64)(word(chips + size * place))(one)


class Allocators:
    """The allocators of a mesh and of its chips."""

    def __init__(self, device):
        self.runtime, self.mesh = library(), pointer(device)
        self.of_mesh = self.ask(ALLOCATOR, self.mesh)

    def ask(self, getter, *args):
        """Calls a getter that returns the address of a pointer."""
        function = self.runtime[getter]
        function.restype = ctypes.c_uint64
        return word(function(*map(ctypes.c_uint64, args)))

    def of_chip(self, chip):
        get = self.runtime[CHIP]
        get.restype = ctypes.c_uint64
        return self.ask(CHIP_ALLOCATOR, get(ctypes.c_uint64(self.mesh), ctypes.c_int(chip)))

    def ranges(self, allocator, number):
        """The ranges of L1 that are taken in one of an allocator's lists: 0 is that of all banks together, the others are
        each of a bank."""
        vector = (ctypes.c_uint64 * 3)()
        self.runtime[RANGES](ctypes.byref(vector), ctypes.c_uint64(allocator), ctypes.c_uint32(number))
        return [(word(at), word(at + 8)) for at in range(vector[0], vector[1], 16)]

    def shrink(self, size):
        """Takes some L1 from the bottom of the banks, as loading a sub-device manager does."""
        kind = ctypes.c_uint32(L1)
        shrink = self.runtime[SHRINK]
        shrink(ctypes.c_uint64(self.of_mesh), ctypes.byref(kind), ctypes.c_uint64(size), ctypes.c_bool(True))

    def reset(self):
        """Gives it back, as clearing the manager does."""
        kind = ctypes.c_uint32(L1)
        self.runtime[RESET](ctypes.c_uint64(self.of_mesh), ctypes.byref(kind))
