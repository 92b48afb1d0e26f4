package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// The runtime's allocators keep a set of the buffers that they handed out, and lists of blocks. Reading both shows
// what a process held before it was traced.

// maxLiveBuffers bounds the buffers that a process can claim; atOnce of them are read at a time.
const (
	maxLiveBuffers = aggregator.MaxProcessBuffers
	atOnce         = 4096
)

// openTime bounds the search for a process's devices and allocators.
const openTime = 5 * time.Second

// limit bounds work in CPU time, of this process and of the readers that work for it.
func (in *Inspector) limit(of time.Duration) *proc.Limit { return proc.NewLimit(of, in.mem.ReaderTime) }

var errOpenTime = fmt.Errorf("looking for its devices and allocators took more than %v", openTime)

// errUnread means that some memory, which may hold objects, could not be read: the process hangs, others of the same
// user do, or the reader ended.
var errUnread = errors.New("some of its memory could not be read")

// isOpenOf has, by vtable, the getters that return whether a device is open.
var isOpenOf = map[string]string{metal.DeviceVtable: metal.DeviceIsOpen, metal.MeshDeviceVtable: metal.MeshIsOpen}

// openDevices finds a process's open devices, each with its allocator or 0, and all allocators, of which a device can
// have several and a closed one can have some left. orphans are submeshes that outlive their mesh. With errUnread
// there may be more of all.
func (in *Inspector) openDevices(found memory.Objects) (devices map[uint64]uint64, allocators, orphans []uint64, err error) {
	devices = map[uint64]uint64{}
	late, failed := in.limit(openTime).Over, in.mem.Failed()
	in = in.withCache()
	in.objectsAhead(found)
	add := func(allocator uint64) {
		if !slices.Contains(allocators, allocator) {
			allocators = append(allocators, allocator)
		}
	}
	for vtable, isOpen := range isOpenOf {
		for _, address := range found[in.vptr(vtable)] {
			if late() {
				return nil, nil, nil, errOpenTime
			}
			// Memory of closed devices is found, too.
			if initialized, err := in.call(isOpen, address); err == nil && initialized&1 == 0 {
				continue
			}
			if vtable == metal.MeshDeviceVtable && in.parentClosed(address) {
				orphans = append(orphans, address)
				continue
			}
			if chips, _, _, err := in.Device(address); err != nil || len(chips) == 0 {
				continue
			}
			a, err := in.allocator(metal.AllocatorOf[vtable], address)
			switch {
			case err == nil:
				add(a)
			case vtable == metal.DeviceVtable && in.lib.Defines(in.lib.First(metal.AllocatorOf[vtable])) && !errors.Is(err, memory.ErrLater):
				// A device's vptr occurs elsewhere too, followed by any bytes. A chip that is open has an allocator.
				continue
			}
			devices[address] = a
		}
	}
	for _, vtable := range []string{metal.BankingAllocator, metal.MockAllocator} {
		if vptr := in.vptr(vtable); vptr != 0 {
			for _, address := range found[vptr] {
				if late() {
					return nil, nil, nil, errOpenTime
				}
				if in.hasBanks(address) {
					add(address)
				}
			}
		}
	}
	if in.mem.Failed() != failed {
		err = errUnread
	}
	return devices, allocators, orphans, err
}

// objectsAhead reads the beginnings of devices and allocators with few requests. Beyond aheadObjects they are read
// one by one.
func (in *Inspector) objectsAhead(found memory.Objects) {
	const aheadObjects, bytes = 256, 512
	var list []uint64
	for _, vptr := range in.openVptrs() {
		list = append(list, found[vptr]...)
	}
	in.data.Ahead(list[:min(len(list), aheadObjects)], bytes)
}

// parent returns the mesh of which a device is a submesh; 0 if there is none or it is unknown.
func (in *Inspector) parent(device uint64) uint64 {
	isMesh := func(address uint64) bool {
		vptr, err := in.recent().U64(address)
		return err == nil && vptr == in.vptr(metal.MeshDeviceVtable)
	}
	if !isMesh(device) {
		return 0
	}
	pointer, err := in.call(metal.MeshParent, device)
	if err != nil {
		return 0
	}
	parent, err := in.recent().U64(pointer)
	if err != nil || parent == device || !isMesh(parent) {
		return 0
	}
	return parent
}

// IsOpen reports whether a device is open. If it cannot be read it counts as closed, except after memory.ErrLater.
func (in *Inspector) IsOpen(device uint64) bool {
	open, err := in.saysOpen(device)
	return errors.Is(err, memory.ErrLater) || err == nil && open
}

// IsClosed reports whether the device's memory says that it is closed, or no device is there any more.
func (in *Inspector) IsClosed(device uint64) bool {
	open, err := in.saysOpen(device)
	return err == nil && !open
}

func (in *Inspector) saysOpen(device uint64) (bool, error) {
	vptr, err := in.recent().U64(device)
	if err != nil {
		return false, err
	}
	for vtable, isOpen := range isOpenOf {
		if in.vptr(vtable) == vptr {
			open, err := in.call(isOpen, device)
			return open&1 != 0 && !in.parentClosed(device), err
		}
	}
	return false, nil
}

// Within reports whether a device is a submesh of a mesh, or of one of its submeshes.
func (in *Inspector) Within(device, mesh uint64) bool {
	for range maxMeshDepth {
		if device = in.parent(device); device == 0 {
			return false
		}
		if device == mesh {
			return true
		}
	}
	return false
}

// maxMeshDepth bounds the nesting of submeshes.
const maxMeshDepth = 8

// parentClosed reports whether a submesh outlives its mesh. Its buffers are gone, although it does not know that. It
// keeps its chips open as long as something refers to it.
func (in *Inspector) parentClosed(mesh uint64) bool {
	for range maxMeshDepth {
		if mesh = in.parent(mesh); mesh == 0 {
			return false
		}
		if open, err := in.call(metal.MeshIsOpen, mesh); err == nil && open&1 == 0 && !in.onlyHolds(mesh) {
			return true
		}
	}
	return false
}

// onlyHolds reports whether a mesh that is not initialized never was: create_unit_meshes makes one that only holds the
// chips open for its submeshes. A mesh that closed has let go of its chips. MeshIsOpen asks for both, whether the mesh
// is initialized first, so it is evaluated as if that were set.
func (in *Inspector) onlyHolds(mesh uint64) bool {
	flag := &firstByte{Memory: in}
	m := in.machineOver(flag)
	defer m.Free()
	if open, err := in.callOn(m, metal.MeshIsOpen, mesh); err != nil || open&1 != 0 || flag.at == 0 {
		return false
	}
	if err := m.Write(flag.at, []byte{1}); err != nil {
		return false
	}
	open, err := in.callOn(m, metal.MeshIsOpen, mesh)
	return err == nil && open&1 != 0
}

// firstByte notes where the first single byte is read.
type firstByte struct {
	x86eval.Memory
	at uint64
}

func (f *firstByte) ReadAt(p []byte, address uint64) error {
	if len(p) == 1 && f.at == 0 {
		f.at = address
	}
	return f.Memory.ReadAt(p, address)
}

// allocator returns a device's allocator. The getter returns the allocator or, in most releases, the address of the
// pointer to it; only an allocator has banks, which shows which one it is.
func (in *Inspector) allocator(getter []string, device uint64) (uint64, error) {
	a, err := in.callFirst(getter, device)
	if err != nil {
		return 0, err
	}
	pointer := a
	if a, err = in.recent().U64(pointer); err == nil && in.hasBanks(a) {
		return a, nil
	}
	if in.hasBanks(pointer) {
		return pointer, nil
	}
	return 0, fmt.Errorf("no allocator at %#x", pointer)
}

// AllocatorOf reads a device's allocator and its banks. It fails unless all of it is known.
func (in *Inspector) AllocatorOf(device uint64) (allocator uint64, c aggregator.Capacity, err error) {
	in = in.withCache()
	vptr, err := in.recent().U64(device)
	if err != nil {
		return 0, c, err
	}
	err = errNotADevice
	for vtable, getter := range metal.AllocatorOf {
		if in.vptr(vtable) == vptr {
			allocator, err = in.allocator(getter, device)
		}
	}
	if err == nil {
		c, err = in.capacity(allocator)
	}
	return allocator, c, err
}

func (in *Inspector) hasBanks(allocator uint64) bool {
	const most = 1 << 16
	n, err := in.ofMemory(metal.NumBanks, allocator, aggregator.DRAM)
	return err == nil && n > 0 && n < most
}

// liveBuffers reads the buffers of an allocator. The process keeps running: what it does not touch is read correctly,
// and the set is read again until it is complete.
func (in *Inspector) liveBuffers(layout *metal.Layout, allocator, set uint64) ([]aggregator.LiveBuffer, error) {
	r := in.last[allocator]
	if r == nil {
		r = &rescan{whole: in.last == nil}
		if in.last != nil {
			in.last[allocator] = r
		}
	}
	return r.follow(in.bufferSet(layout, allocator, allocator+set), in.limit(strictTime).Over, in.limit(time.Second).Over)
}

// windows reads the part of each Buffer object that has its fields, one after another, and returns where these parts
// are.
func (in *Inspector) windows(layout *metal.Layout, buffers []uint64) (at []uint64, windows []byte, err error) {
	if at, err = in.bases(layout, buffers); err != nil {
		return nil, nil, err
	}
	windows, err = in.mem.ReadEach(at, 0, metal.WindowSize)
	return at, windows, err
}

// bases returns where the fields of Buffer objects begin.
func (in *Inspector) bases(layout *metal.Layout, buffers []uint64) ([]uint64, error) {
	at := slices.Clone(buffers)
	if layout.Indirect {
		words, err := in.mem.ReadEach(buffers, uint64(layout.Base), 8)
		if err != nil {
			return nil, err
		}
		for i := range at {
			at[i] = binary.LittleEndian.Uint64(words[8*i:])
		}
	} else {
		for i := range at {
			at[i] += uint64(layout.Base)
		}
	}
	return at, nil
}

// bufferFields are the offsets of a layout's fields from the window's beginning.
type bufferFields struct {
	allocator, status, hooked, device, address, size, pageSize, memory, layout uint32
}

func fieldsOf(l *metal.Layout) bufferFields {
	return bufferFields{
		allocator: l.Offset("allocator"), status: l.Offset("status"), hooked: l.Offset("hooked"), device: l.Offset("device"), address: l.Offset("address"),
		size: l.Offset("size"), pageSize: l.Offset("page_size"), memory: l.Offset("type"), layout: l.Offset("layout"),
	}
}

// buffer decodes a window. It returns false if the buffer is not this allocator's, or not allocated (any more).
func (f *bufferFields) buffer(w []byte, id, allocator uint64) (h aggregator.LiveBuffer, ok bool) {
	u64 := func(offset uint32) uint64 { return binary.LittleEndian.Uint64(w[offset:]) }
	u32 := func(offset uint32) uint32 { return binary.LittleEndian.Uint32(w[offset:]) }
	if u64(f.allocator) != allocator || w[f.status] != metal.StatusAllocated || w[f.hooked] != 0 {
		return h, false
	}
	return aggregator.LiveBuffer{
		Buffer: id, Device: u64(f.device), Allocator: allocator, Address: uint64(u32(f.address)), Size: u64(f.size),
		PageSize: u64(f.pageSize), Memory: aggregator.Memory(min(u32(f.memory), 255)), MemoryLayout: uint8(min(u32(f.layout), 255)),
	}, true
}
