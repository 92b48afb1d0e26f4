package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/x86eval"
)

// openTime bounds the search for a process's devices and allocators.
const openTime = 5 * time.Second

var errOpenTime = fmt.Errorf("looking for its devices and allocators took more than %v", openTime)

// errUnread means that some memory, which may hold objects, could not be read: the process hangs, others of the same
// user do, or the reader ended.
var errUnread = errors.New("some of its memory could not be read")

// isOpenOf has, by vtable, the getters that return whether a device is open.
var isOpenOf = map[string]string{metal.DeviceVtable: metal.DeviceIsOpen, metal.MeshDeviceVtable: metal.MeshIsOpen}

// findOpen finds a process's open devices, each with its allocator or 0, and all allocators, of which a device can
// have several and a closed one can have some left. orphans are submeshes that outlive their mesh. With errUnread
// there may be more of all.
func findOpen(v *view.View, found memory.Objects) (devices map[uint64]uint64, allocators, orphans []uint64, err error) {
	devices = map[uint64]uint64{}
	late, failed := v.Limit(openTime).Over, v.Mem.Failed()
	objectsAhead(v, found)
	add := func(allocator uint64) {
		if !slices.Contains(allocators, allocator) {
			allocators = append(allocators, allocator)
		}
	}
	for vtable, isOpen := range isOpenOf {
		for _, address := range found[v.Vptr(vtable)] {
			if late() {
				return nil, nil, nil, errOpenTime
			}
			// Memory of closed devices is found, too.
			if initialized, err := v.Call(isOpen, address); err == nil && initialized&1 == 0 {
				continue
			}
			if vtable == metal.MeshDeviceVtable && parentClosed(v, address) {
				orphans = append(orphans, address)
				continue
			}
			if chips, _, _, err := readDevice(v, address); err != nil || len(chips) == 0 {
				continue
			}
			a, err := allocatorOf(v, metal.AllocatorOf[vtable], address)
			switch {
			case err == nil:
				add(a)
			case vtable == metal.DeviceVtable && v.Lib.Defines(v.Lib.First(metal.AllocatorOf[vtable])) && !errors.Is(err, memory.ErrLater):
				// A device's vptr occurs elsewhere too, followed by any bytes. A chip that is open has an allocator.
				continue
			}
			devices[address] = a
		}
	}
	for _, vtable := range []string{metal.BankingAllocator, metal.MockAllocator} {
		if vptr := v.Vptr(vtable); vptr != 0 {
			for _, address := range found[vptr] {
				if late() {
					return nil, nil, nil, errOpenTime
				}
				if isAllocator(v, address) {
					add(address)
				}
			}
		}
	}
	if v.Mem.Failed() != failed {
		err = errUnread
	}
	return devices, allocators, orphans, err
}

// objectsAhead reads the beginnings of devices and allocators with few requests. Beyond aheadObjects they are read
// one by one.
func objectsAhead(v *view.View, found memory.Objects) {
	const aheadObjects, bytes = 256, 512
	var list []uint64
	for _, vptr := range openVptrs(v.Process) {
		list = append(list, found[vptr]...)
	}
	v.Pages().Ahead(list[:min(len(list), aheadObjects)], bytes)
}

// parentOf returns the mesh of which a device is a submesh; 0 if there is none or it is unknown.
func parentOf(v *view.View, device uint64) uint64 {
	isMesh := func(address uint64) bool {
		vptr, err := v.Pages().U64(address)
		return err == nil && vptr == v.Vptr(metal.MeshDeviceVtable)
	}
	if !isMesh(device) {
		return 0
	}
	pointer, err := v.Call(metal.MeshParent, device)
	if err != nil {
		return 0
	}
	parent, err := v.Pages().U64(pointer)
	if err != nil || parent == device || !isMesh(parent) {
		return 0
	}
	return parent
}

// mayBeOpen reports whether a device is open. If it cannot be read it counts as closed, except after memory.ErrLater.
func mayBeOpen(v *view.View, device uint64) bool {
	open, err := saysOpen(v, device)
	return errors.Is(err, memory.ErrLater) || err == nil && open
}

// isClosed reports whether the device's memory says that it is closed, or no device is there any more: the memory of a
// device that is freed can be unmapped, and that of an open one is not. After any other error it is unknown, as if the
// process hangs, and the device does not count as closed.
func isClosed(v *view.View, device uint64) bool {
	open, err := saysOpen(v, device)
	return errors.Is(err, unix.EFAULT) || err == nil && !open
}

// saysClosed does what isClosed does, except that unmapped memory says nothing.
func saysClosed(v *view.View, device uint64) bool {
	open, err := saysOpen(v, device)
	return err == nil && !open
}

func saysOpen(v *view.View, device uint64) (bool, error) {
	vptr, err := v.Pages().U64(device)
	if err != nil {
		return false, err
	}
	for vtable, isOpen := range isOpenOf {
		if v.Vptr(vtable) == vptr {
			open, err := v.Call(isOpen, device)
			return open&1 != 0 && !parentClosed(v, device), err
		}
	}
	return false, nil
}

// isWithin reports whether a device is a submesh of a mesh, or of one of its submeshes.
func isWithin(v *view.View, device, mesh uint64) bool {
	for range maxMeshDepth {
		if device = parentOf(v, device); device == 0 {
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
func parentClosed(v *view.View, mesh uint64) bool {
	for range maxMeshDepth {
		if mesh = parentOf(v, mesh); mesh == 0 {
			return false
		}
		if open, err := v.Call(metal.MeshIsOpen, mesh); err == nil && open&1 == 0 && !onlyHolds(v, mesh) {
			return true
		}
	}
	return false
}

// onlyHolds reports whether a mesh that is not initialized never was: create_unit_meshes makes one that only holds the
// chips open for its submeshes. A mesh that closed has let go of its chips. MeshIsOpen asks for both, whether the mesh
// is initialized first, so it is evaluated as if that were set.
func onlyHolds(v *view.View, mesh uint64) bool {
	flag := &firstByte{Memory: v}
	m := v.MachineOver(flag)
	defer m.Free()
	if open, err := v.CallOn(m, metal.MeshIsOpen, mesh); err != nil || open&1 != 0 || flag.at == 0 {
		return false
	}
	if err := m.Write(flag.at, []byte{1}); err != nil {
		return false
	}
	open, err := v.CallOn(m, metal.MeshIsOpen, mesh)
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

// deviceOfQueue returns the first device to which a word of the command queue leads. It recognizes a device by its
// vptr, so the queue's layout does not matter.
func deviceOfQueue(v *view.View, queue uint64) (uint64, error) {
	const words = 8
	var b [8 * words]byte
	if err := v.Mem.ReadAt(b[:], queue); err != nil {
		return 0, err
	}
	for i := range words {
		word := binary.LittleEndian.Uint64(b[8*i:])
		if word == 0 || word%8 != 0 {
			continue
		}
		if _, _, _, err := readDevice(v, word); err == nil {
			return word, nil
		}
	}
	return 0, fmt.Errorf("looking for the device of the command queue at %#x: %w", queue, errNotADevice)
}

// maxChips bounds the chips that a process can claim for a mesh, and their numbers.
const maxChips = 4096

// archNames are the names of the runtime's tt::ARCH.
var archNames = map[uint64]string{1: "grayskull", 2: "wormhole_b0", 3: "blackhole", 4: "quasar"}

// boardNames are the cards' names for the driver library's BoardType.
var boardNames = map[uint64]string{3: "n150", 4: "n300", 5: "p100", 6: "p150", 7: "p300", 8: "galaxy", 9: "galaxy"}

// errNotADevice: the address holds no device, or no longer.
var errNotADevice = errors.New("not a device")

// readDevice reads which chips a Device or MeshDevice spans, by the process's own
// numbers.
func readDevice(v *view.View, address uint64) (chips []uint32, mesh bool, arch string, err error) {
	vptr, err := v.Pages().U64(address)
	if err != nil {
		return nil, false, "", err
	}
	switch vptr {
	case v.Vptr(metal.DeviceVtable):
		id, err := v.Call(metal.DeviceID, address)
		if err != nil {
			return nil, false, "", err
		}
		chips = []uint32{uint32(id)}
	case v.Vptr(metal.MeshDeviceVtable):
		mesh = true
		if chips, err = v.Ints(metal.MeshDeviceIDs, address, maxChips); err != nil {
			return nil, true, "", err
		}
	default:
		return nil, false, "", fmt.Errorf("reading device at %#x: %w", address, errNotADevice)
	}
	if slices.ContainsFunc(chips, func(c uint32) bool { return c >= maxChips }) {
		return nil, mesh, "", fmt.Errorf("reading device at %#x: it has the chips %v: %w", address, chips, errNotADevice)
	}
	getter := metal.DeviceArch
	if mesh {
		getter = metal.MeshDeviceArch
	}
	if a, err := v.Call(getter, address); err == nil {
		arch = archNames[a&0xffffffff]
	}
	return chips, mesh, arch, nil
}

// boardOfChip reads the name of the card that a chip is on, or "".
func boardOfChip(v *view.View, chip uint32) string {
	context, err := v.CallFirst(metal.ContextInstance, 0)
	if err != nil {
		return ""
	}
	cluster, err := v.Call(metal.GetCluster, context)
	if err != nil {
		return ""
	}
	board, err := v.Call(metal.BoardType, cluster, uint64(chip))
	if err != nil {
		return ""
	}
	return boardNames[board&0xffffffff]
}

// holdsDevices reports whether the process has devices open by this library.
func holdsDevices(p *view.Process) (bool, error) {
	found, err := p.Mem.Find(openVptrs(p)...)
	if err != nil {
		return false, fmt.Errorf("looking for devices: %w", err)
	}
	devices, _, _, err := findOpen(p.View(), found)
	return len(devices) > 0, err
}

// openVptrs returns the vptrs of devices and allocators.
func openVptrs(p *view.Process) (list []uint64) {
	for _, vtable := range []string{metal.DeviceVtable, metal.MeshDeviceVtable, metal.BankingAllocator, metal.MockAllocator} {
		if vptr := p.Vptr(vtable); vptr != 0 {
			list = append(list, vptr)
		}
	}
	return list
}
