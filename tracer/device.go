package tracer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"tt-memtrace/aggregator"
	"tt-memtrace/tracer/eval"
)

// inspector asks the objects of one live process what they are, by evaluating
// the runtime's own getters outside of the process, over its memory. The
// process is only read.
type inspector struct {
	lib  *Library
	base uint64
	mem  processMemory
	// standard is the C++ library of the process, where it is needed.
	standard func() (*eval.Image, uint64)
	// code and data are shared by evaluations that follow each other closely, of
	// one goroutine; nil where they are not.
	code *eval.Code
	data *pages
}

// closely is for evaluations that follow each other closely: they decode the same
// code once, and take each page of the process's memory as it was when it was
// read first, until fresh is called.
func (in *inspector) closely() *inspector {
	c := *in
	c.code = eval.NewCode()
	c.fresh()
	return &c
}

// fresh forgets the memory that was read.
func (in *inspector) fresh() { in.data = in.pages() }

func newInspector(lib *Library, m Mapping) *inspector {
	return &inspector{lib: lib, base: m.Base - lib.segments[0].Vaddr&^4095, mem: processMemory(m.PID), standard: sync.OnceValues(func() (*eval.Image, uint64) {
		return lib.standardOf(m.PID)
	})}
}

// The getters, by the names they have had.
const (
	deviceVtable     = "_ZTVN2tt8tt_metal6DeviceE"
	meshDeviceVtable = "_ZTVN2tt8tt_metal11distributed10MeshDeviceE"
	deviceID         = "_ZNK2tt8tt_metal6Device2idEv"
	deviceArch       = "_ZNK2tt8tt_metal6Device4archEv"
	meshDeviceIDs    = "_ZNK2tt8tt_metal11distributed10MeshDevice14get_device_idsEv"
	meshDeviceArch   = "_ZNK2tt8tt_metal11distributed10MeshDevice4archEv"
	boardType        = "_ZNK2tt7Cluster14get_board_typeEi"
	getCluster       = "_ZN2tt8tt_metal12MetalContext11get_clusterEv"
)

// contextInstance gives the MetalContext; its argument, a context's number, is 0 by default.
var contextInstance = []string{
	"_ZN2tt8tt_metal12MetalContext8instanceEN4ttsl10StrongTypeIiNS0_12ContextIdTagEEE",
	"_ZN2tt8tt_metal12MetalContext8instanceEv",
}

var (
	numBanks = []string{
		"_ZNK2tt8tt_metal13AllocatorImpl13get_num_banksERKNS0_10BufferTypeE",
		"_ZNK2tt8tt_metal9Allocator13get_num_banksERKNS0_10BufferTypeE",
	}
	bankSize = []string{
		"_ZNK2tt8tt_metal13AllocatorImpl13get_bank_sizeERKNS0_10BufferTypeE",
		"_ZNK2tt8tt_metal9Allocator13get_bank_sizeERKNS0_10BufferTypeE",
	}
)

// maxChips bounds what a process can claim that a mesh spans.
const maxChips = 4096

// archNames are the runtime's tt::ARCH.
var archNames = map[uint64]string{1: "grayskull", 2: "wormhole_b0", 3: "blackhole", 4: "quasar"}

// boardNames are the driver library's BoardType, as cards are called.
var boardNames = map[uint64]string{3: "n150", 4: "n300", 5: "p100", 6: "p150", 7: "p300", 8: "galaxy", 9: "galaxy"}

// errNotADevice: the address does not hold a device (any more).
var errNotADevice = errors.New("not a device")

// device reads which chips a Device or MeshDevice spans, by the process's own
// numbers.
func (in *inspector) device(address uint64) (chips []uint32, mesh bool, arch string, err error) {
	var word [8]byte
	if err := in.mem.ReadAt(word[:], address); err != nil {
		return nil, false, "", err
	}
	vptr := binary.LittleEndian.Uint64(word[:])
	switch vptr {
	case in.vptr(deviceVtable):
		id, err := in.call(deviceID, address)
		if err != nil {
			return nil, false, "", err
		}
		chips = []uint32{uint32(id)}
	case in.vptr(meshDeviceVtable):
		mesh = true
		if chips, err = in.ints(meshDeviceIDs, address); err != nil {
			return nil, true, "", err
		}
	default:
		return nil, false, "", fmt.Errorf("reading device at %#x: %w", address, errNotADevice)
	}
	getter := deviceArch
	if mesh {
		getter = meshDeviceArch
	}
	if a, err := in.call(getter, address); err == nil {
		arch = archNames[a&0xffffffff]
	}
	return chips, mesh, arch, nil
}

// board reads the name of the card that a chip is on, or "".
func (in *inspector) board(chip uint32) string {
	context, err := in.callFirst(contextInstance, 0)
	if err != nil {
		return ""
	}
	cluster, err := in.call(getCluster, context)
	if err != nil {
		return ""
	}
	board, err := in.call(boardType, cluster, uint64(chip))
	if err != nil {
		return ""
	}
	return boardNames[board&0xffffffff]
}

// capacity reads an allocator's banks. A memory that cannot be read stays unknown.
func (in *inspector) capacity(allocator uint64) (c aggregator.Capacity, err error) {
	for m := range aggregator.NumMemories {
		if m == aggregator.SystemMemory {
			continue // not on the chip, and the allocator refuses to tell
		}
		n, e := in.ofMemory(numBanks, allocator, m)
		if e != nil {
			err = e
			continue
		}
		size, e := in.ofMemory(bankSize, allocator, m)
		if e != nil {
			err = e
			continue
		}
		c[m] = aggregator.Banks{Known: true, Count: uint32(n), Bytes: size}
	}
	return c, err
}

// vptr is what the first word of an object of a class is: behind the offset to
// top and the type info of its vtable.
func (in *inspector) vptr(vtable string) uint64 {
	s, ok := in.lib.symbols[vtable]
	if !ok {
		return 0
	}
	return in.base + s.Value + 16
}

func (in *inspector) machine(options ...eval.Option) *eval.Machine {
	options = append([]eval.Option{eval.WithSlots(in.slot)}, options...)
	if in.code != nil {
		options = append(options, eval.WithCode(in.code))
	}
	return eval.New(in, options...)
}

// slot resolves a call to another function by its name: the pointer may be
// unbound, or lead to a function that must not be evaluated, like a lock.
func (in *inspector) slot(address uint64) (uint64, eval.Hook, bool) {
	image, err := in.lib.Image()
	if err != nil {
		return 0, nil, false
	}
	target, hook, ok := image.SlotFunc(eval.Libc)(address - in.base)
	if target != 0 {
		target += in.base
	}
	return target, hook, ok
}

// standardSlot resolves a call that the C++ library makes of another function by
// its name: of the C library's there are several, of which the process's are
// the fastest on this machine, in instructions that are not evaluated.
func (in *inspector) standardSlot(address uint64) (uint64, eval.Hook, bool) {
	image, base := in.standard()
	if image == nil {
		return 0, nil, false
	}
	target, hook, ok := image.SlotFunc(eval.Libc)(address - base)
	if target != 0 {
		target += base
	}
	return target, hook, ok
}

// standardLibrary is a C++ library that was read.
type standardLibrary struct {
	id    FileID
	image *eval.Image
}

// standardOf is the C++ library that a process has mapped, or nil. Processes that
// use the same runtime mostly have the same one, which is kept.
func (l *Library) standardOf(pid uint32) (*eval.Image, uint64) {
	maps, err := procMaps(pid)
	if err != nil {
		return nil, 0
	}
	for _, m := range maps {
		if !strings.HasPrefix(filepath.Base(m.Pathname), "libstdc++.so") || m.Offset != 0 {
			continue
		}
		f, st, err := openRegular(Mapping{PID: pid, Path: m.Pathname}.fileName())
		if err != nil {
			return nil, 0
		}
		id := FileID{st.Dev, st.Ino}
		if kept := l.standard.Load(); kept != nil && kept.id == id {
			f.Close()
			return kept.image, uint64(m.StartAddr)
		}
		var image *eval.Image
		if st.Size <= maxStandard {
			// It reads the file, which is closed when nobody has the image any more.
			image, err = eval.NewImage(f, 0)
		}
		if image == nil || err != nil {
			f.Close()
			return nil, 0
		}
		l.standard.Store(&standardLibrary{id, image})
		return image, uint64(m.StartAddr)
	}
	return nil, 0
}

// maxStandard bounds the size of a C++ library, bytes.
const maxStandard = 16 << 20

// callFirst evaluates the first of the functions that the library has.
func (in *inspector) callFirst(names []string, args ...uint64) (uint64, error) {
	return in.call(in.lib.first(names), args...)
}

// call evaluates a function of the library.
func (in *inspector) call(name string, args ...uint64) (uint64, error) {
	return in.callOn(in.machine(), name, args...)
}

// callOn evaluates a function of the library on a machine.
func (in *inspector) callOn(m *eval.Machine, name string, args ...uint64) (uint64, error) {
	s, ok := in.lib.symbols[name]
	if !ok {
		return 0, fmt.Errorf("evaluating %s: the library lacks it", name)
	}
	v, err := m.Call(in.base+s.Value, args...)
	if err != nil {
		return 0, fmt.Errorf("evaluating %s: %w", name, err)
	}
	return v, nil
}

// ofMemory evaluates a getter that takes a const BufferType&.
func (in *inspector) ofMemory(names []string, this uint64, memory aggregator.Memory) (uint64, error) {
	m := in.machine()
	arg, err := m.Alloc(4)
	if err == nil {
		err = m.WriteU32(arg, uint32(memory))
	}
	if err != nil {
		return 0, err
	}
	return in.callOn(m, in.lib.first(names), this, arg)
}

// vector evaluates a getter that returns a std::vector, and says where that is.
func (in *inspector) vector(m *eval.Machine, getter string, this uint64) (at uint64, err error) {
	if at, err = m.Alloc(24); err == nil {
		_, err = in.callOn(m, getter, at, this)
	}
	return at, err
}

// readVector reads where the elements of a std::vector are and how many, at the
// most, of a size in bytes.
func readVector(m *eval.Machine, at, size, most uint64) (begin, count uint64, err error) {
	if begin, err = m.ReadU64(at); err != nil {
		return 0, 0, err
	}
	end, err := m.ReadU64(at + 8)
	if err != nil {
		return 0, 0, err
	}
	if end < begin || (end-begin)%size != 0 || (end-begin)/size > most {
		return 0, 0, fmt.Errorf("a vector from %#x to %#x", begin, end)
	}
	return begin, (end - begin) / size, nil
}

// ints evaluates a getter that returns a std::vector<int>.
func (in *inspector) ints(getter string, this uint64) ([]uint32, error) {
	m := in.machine()
	at, err := in.vector(m, getter, this)
	if err != nil {
		return nil, err
	}
	begin, count, err := readVector(m, at, 4, maxChips)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: it returned %w", getter, err)
	}
	list := make([]uint32, count)
	for i := range list {
		if list[i], err = m.ReadU32(begin + 4*uint64(i)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ReadAt gives the library's code from its file, because the process's own has
// breakpoints in it, and everything else from the process.
func (in *inspector) ReadAt(p []byte, address uint64) error {
	if address >= in.base {
		if offset, ok := in.lib.fileOffset(address - in.base); ok {
			if _, err := in.lib.file.ReadAt(p, int64(offset)); err == nil {
				return nil
			}
		}
	}
	if in.data != nil {
		return in.data.ReadAt(p, address)
	}
	return in.mem.ReadAt(p, address)
}
