// Package inspect reads what one live process of the runtime holds: devices, allocators, buffers, programs and
// kernels. It evaluates the runtime's own functions over the process's memory, which it only reads. It needs no
// probes and returns values.
package inspect

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// Inspector reads the objects of one live process by evaluating the runtime's own getters outside of the process,
// over its memory.
type Inspector struct {
	lib  *metal.Library
	base uint64
	mem  *memory.Process
	// opener opens the process's files.
	opener *memory.Process
	// standard loads the process's C++ library when it is first needed.
	standard func() (*x86eval.Image, uint64)
	kept
	// together: all evaluations share one cache, see Together.
	together bool
	// last, if not nil, is what each allocator had at its last scan.
	last map[uint64]*rescan
	// quickPaths has, for each function that reads a kernel's binaries, the number of files; 0 if evaluating with
	// x86eval.Paths gives other ones.
	quickPaths *sync.Map
}

// kept is the cache of a sequence of evaluations on one goroutine; its fields are nil without a cache.
type kept struct {
	code *x86eval.Code
	data *memory.Pages
	// targets caches where calls through pointers lead.
	targets map[uint64]slotTarget
	// cores caches the cores of sets of ranges.
	cores map[rangesOfCores][]byte
	// ranges caches which devices of a mesh some ranges cover, as long as data is kept.
	ranges map[rangeOfMesh][]uint64
}

// Hurried returns an Inspector of the same process for callers that must not wait: see memory.ErrLater.
func (in *Inspector) Hurried() *Inspector {
	c := *in
	c.mem, c.opener = in.mem.Hurried(), in.opener.Hurried()
	return &c
}

// Files returns the process for opening its files.
func (in *Inspector) Files() *memory.Process { return in.mem.Files() }

// Late returns how many hurried reads came too late so far.
func (in *Inspector) Late() uint64 { return in.mem.Late() + in.opener.Late() }

// Hung reports whether the process's memory did not answer.
func (in *Inspector) Hung() bool { return in.mem.Hung() }

// Repeatedly returns an Inspector that scans allocators faster if they are scanned often. Only one goroutine may use
// it at a time.
func (in *Inspector) Repeatedly() *Inspector {
	c := *in
	c.last = map[uint64]*rescan{}
	return &c
}

// withCache returns an Inspector for a quick sequence of evaluations. They decode the same code once, and see each
// page of the process's memory as it was first read, until resetCache. Within Together it is the Inspector's shared
// cache.
func (in *Inspector) withCache() *Inspector {
	if in.together {
		c := *in
		return &c
	}
	return withOwnCache(in)
}

// withOwnCache does what withCache does, also within Together, and so sees the process's memory as it is now.
func withOwnCache(in *Inspector) *Inspector {
	c := *in
	c.kept = kept{code: x86eval.NewCode(), targets: map[uint64]slotTarget{}, cores: map[rangesOfCores][]byte{}}
	c.resetCache()
	return &c
}

// Together makes all calls on this inspector, from one goroutine, see the process's memory as it was first read,
// until end is called. So what many objects have in common is read once.
func (in *Inspector) Together() (end func()) {
	in.kept, in.together = in.withCache().kept, true
	return func() { in.kept, in.together = kept{}, false }
}

// AsOfNow returns an Inspector for one goroutine whose calls all see the process's memory as it was first read.
func (in *Inspector) AsOfNow() *Inspector {
	c := *in
	c.Together()
	return &c
}

func (in *Inspector) pages() *memory.Pages { return memory.NewPages(in.mem) }

// recent returns the process's memory as evaluations see it: cached if there is a cache.
func (in *Inspector) recent() *memory.Pages {
	if in.data != nil {
		return in.data
	}
	return in.pages()
}

// resetCache forgets the memory read so far.
func (in *Inspector) resetCache() { in.data, in.ranges = in.pages(), map[rangeOfMesh][]uint64{} }

func New(lib *metal.Library, m proc.Mapping) *Inspector { return NewOver(memory.Of(m.PID), lib, m) }

// NewOver does what New does, over memory that is read in another way.
func NewOver(mem *memory.Process, lib *metal.Library, m proc.Mapping) *Inspector {
	files := mem.Files()
	return &Inspector{lib: lib, base: lib.LoadedAt(m), mem: mem, opener: files, quickPaths: &sync.Map{}, standard: sync.OnceValues(func() (*x86eval.Image, uint64) {
		return standardOf(lib, files)
	})}
}

// Interrupt ends all reads of the process.
func (in *Inspector) Interrupt() {
	in.mem.Interrupt()
	in.opener.Interrupt()
}

// maxChips bounds the chips that a process can claim for a mesh, and their numbers.
const maxChips = 4096

// archNames are the names of the runtime's tt::ARCH.
var archNames = map[uint64]string{1: "grayskull", 2: "wormhole_b0", 3: "blackhole", 4: "quasar"}

// boardNames are the cards' names for the driver library's BoardType.
var boardNames = map[uint64]string{3: "n150", 4: "n300", 5: "p100", 6: "p150", 7: "p300", 8: "galaxy", 9: "galaxy"}

// errNotADevice: the address holds no device, or no longer.
var errNotADevice = errors.New("not a device")

// Device reads which chips a Device or MeshDevice spans, by the process's own
// numbers.
func (in *Inspector) Device(address uint64) (chips []uint32, mesh bool, arch string, err error) {
	vptr, err := in.recent().U64(address)
	if err != nil {
		return nil, false, "", err
	}
	switch vptr {
	case in.vptr(metal.DeviceVtable):
		id, err := in.call(metal.DeviceID, address)
		if err != nil {
			return nil, false, "", err
		}
		chips = []uint32{uint32(id)}
	case in.vptr(metal.MeshDeviceVtable):
		mesh = true
		if chips, err = in.ints(metal.MeshDeviceIDs, address); err != nil {
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
	if a, err := in.call(getter, address); err == nil {
		arch = archNames[a&0xffffffff]
	}
	return chips, mesh, arch, nil
}

// Board reads the name of the card that a chip is on, or "".
func (in *Inspector) Board(chip uint32) string {
	context, err := in.callFirst(metal.ContextInstance, 0)
	if err != nil {
		return ""
	}
	cluster, err := in.call(metal.GetCluster, context)
	if err != nil {
		return ""
	}
	board, err := in.call(metal.BoardType, cluster, uint64(chip))
	if err != nil {
		return ""
	}
	return boardNames[board&0xffffffff]
}

// halMemories are the numbers of the runtime's HalMemType, which name a memory with all its parts: L1_SMALL and TRACE
// begin elsewhere in it.
var halMemories = map[aggregator.Memory]aggregator.Memory{aggregator.L1: 0, aggregator.DRAM: 1}

// Capacity reads an allocator's banks. A memory that cannot be read stays unknown.
func (in *Inspector) Capacity(allocator uint64) (aggregator.Capacity, error) {
	return in.withCache().capacity(allocator)
}

// Resized reports whether an allocator's L1 has another size than known: a sub-device manager can take some of it.
func (in *Inspector) Resized(allocator uint64, known uint64) bool {
	size, err := in.withCache().ofMemory(metal.BankSize, allocator, aggregator.L1)
	return err == nil && size != known
}

func (in *Inspector) capacity(allocator uint64) (c aggregator.Capacity, err error) {
	for m := range aggregator.NumMemories {
		if m == aggregator.SystemMemory {
			continue // not on the chip, and the allocator has no answer for it
		}
		n, e := in.ofMemory(metal.NumBanks, allocator, m)
		if e != nil {
			err = e
			continue
		}
		size, e := in.ofMemory(metal.BankSize, allocator, m)
		if e != nil {
			err = e
			continue
		}
		c[m] = aggregator.Banks{Known: true, Count: uint32(n), Bytes: size}
		if of, ok := halMemories[m]; ok && n > 0 {
			if base, e := in.ofMemory(metal.BankBase, allocator, of); e == nil {
				c[m].Base, c[m].Based = base, true
			}
		}
	}
	return c, err
}

// vptr returns the first word of a class's objects: it points behind the vtable's offset-to-top and type info.
func (in *Inspector) vptr(vtable string) uint64 {
	at, ok := in.lib.Lookup(vtable)
	if !ok {
		return 0
	}
	return in.base + at + 16
}

// addressOf returns the address in the process of a symbol that the library defines.
func (in *Inspector) addressOf(name string) uint64 {
	at, _ := in.lib.Lookup(name)
	return in.base + at
}

func (in *Inspector) machine(options ...x86eval.Option) *x86eval.Machine {
	return in.machineOver(in, options...)
}

// machineOver returns a machine that reads the process's memory through memory.
func (in *Inspector) machineOver(memory x86eval.Memory, options ...x86eval.Option) *x86eval.Machine {
	options = append([]x86eval.Option{x86eval.WithSlots(in.slot)}, options...)
	if in.code != nil {
		options = append(options, x86eval.WithCode(in.code))
	}
	return x86eval.New(memory, options...)
}

// slot resolves a call to another function by name: the pointer may be unbound, or lead to a function that must not
// be evaluated, such as a lock.
func (in *Inspector) slot(address uint64) (uint64, x86eval.Hook, bool) {
	image, err := in.lib.Image()
	if err != nil {
		return 0, nil, false
	}
	target, hook, ok := image.SlotFunc(x86eval.Libc)(address - in.base)
	if target != 0 {
		target += in.base
	}
	return target, hook, ok
}

// standardSlot resolves, by name, a call that the C++ library makes. The C library has several variants of a
// function; the process uses the one that is fastest on this machine, with instructions that the evaluator does not
// know.
func (in *Inspector) standardSlot(address uint64) (uint64, x86eval.Hook, bool) {
	image, base := in.standard()
	if image == nil {
		return 0, nil, false
	}
	target, hook, ok := image.SlotFunc(x86eval.Libc)(address - base)
	if target != 0 {
		target += base
	}
	return target, hook, ok
}

// slotTarget is where a call through a pointer leads: the name, and the hook or the address if known.
type slotTarget struct {
	name    string
	address uint64
	hook    x86eval.Hook
	ok      bool
}

// targetOf returns where a call of the library or of the C++ library leads.
func (in *Inspector) targetOf(slot uint64) slotTarget {
	t, known := in.targets[slot]
	if known {
		return t
	}
	if image, err := in.lib.Image(); err == nil {
		t.name = image.Slots()[slot-in.base]
	}
	if t.address, t.hook, t.ok = in.slot(slot); !t.ok {
		t.address, t.hook, t.ok = in.standardSlot(slot)
	}
	if in.targets != nil {
		in.targets[slot] = t
	}
	return t
}

// callFirst evaluates the first of these functions that the library has.
func (in *Inspector) callFirst(names []string, args ...uint64) (uint64, error) {
	return in.call(in.lib.First(names), args...)
}

// call evaluates a function of the library.
func (in *Inspector) call(name string, args ...uint64) (uint64, error) {
	m := in.machine()
	defer m.Free()
	return in.callOn(m, name, args...)
}

// callOn evaluates a function of the library on a machine.
func (in *Inspector) callOn(m *x86eval.Machine, name string, args ...uint64) (uint64, error) {
	at, ok := in.lib.Lookup(name)
	if !ok {
		return 0, fmt.Errorf("evaluating %s: the library lacks it", name)
	}
	v, err := m.Call(in.base+at, args...)
	if err != nil {
		return 0, fmt.Errorf("evaluating %s: %w", name, err)
	}
	return v, nil
}

// ofMemory evaluates a getter with a const BufferType& parameter.
func (in *Inspector) ofMemory(names []string, this uint64, memory aggregator.Memory) (uint64, error) {
	m := in.machine()
	defer m.Free()
	arg, err := m.Alloc(4)
	if err == nil {
		err = m.WriteU32(arg, uint32(memory))
	}
	if err != nil {
		return 0, err
	}
	return in.callOn(m, in.lib.First(names), this, arg)
}

// vector evaluates a getter that returns a std::vector, and returns the vector's address.
func (in *Inspector) vector(m *x86eval.Machine, getter string, this uint64) (at uint64, err error) {
	if at, err = m.Alloc(24); err == nil {
		_, err = in.callOn(m, getter, at, this)
	}
	return at, err
}

// readVector returns where the elements of a std::vector begin and how many there are, at most most. size is an
// element's size in bytes.
func readVector(m *x86eval.Machine, at, size, most uint64) (begin, count uint64, err error) {
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

// readBytes returns the elements of a vector as bytes.
func readBytes(m *x86eval.Machine, at, size, most uint64) ([]byte, error) {
	begin, count, err := readVector(m, at, size, most)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size*count)
	return b, m.Read(begin, b)
}

// writeVector writes a std::vector whose elements are the size bytes at an address.
func writeVector(m *x86eval.Machine, v, at, size uint64) error {
	return errors.Join(m.WriteU64(v, at), m.WriteU64(v+8, at+size), m.WriteU64(v+16, at+size))
}

// ints evaluates a getter that returns a std::vector<int>.
func (in *Inspector) ints(getter string, this uint64) ([]uint32, error) {
	m := in.machine()
	defer m.Free()
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

// LacksProbe reports whether the process runs code that lacks one of its library's probes. The kernel puts no
// probes into writable pages, nor into memory to which the code was moved (to get huge pages, for example). If the
// process cannot be read, it returns false.
func (in *Inspector) LacksProbe(probes []metal.Probe) bool {
	at := make([]uint64, len(probes))
	for i, p := range probes {
		at[i] = in.base + p.Address + p.Skipped
	}
	is, _ := in.mem.ReadEach(at, 0, 1)
	var was [1]byte
	for i, p := range probes[:len(is)] {
		if in.lib.ReadCode(was[:], p.Address+p.Skipped) && is[i] == was[0] {
			return true
		}
	}
	return false
}

// ReadAt reads the library's code from its file, because the process's copy has breakpoints, and everything else from
// the process.
func (in *Inspector) ReadAt(p []byte, address uint64) error {
	if address >= in.base && in.lib.ReadCode(p, address-in.base) {
		return nil
	}
	if in.data != nil {
		return in.data.ReadAt(p, address)
	}
	return in.mem.ReadAt(p, address)
}

// standardOf returns the C++ library that a process has loaded, and where; or nil.
func standardOf(lib *metal.Library, mem *memory.Process) (*x86eval.Image, uint64) {
	files, _ := mem.Loaded(func(path string, _ proc.FileID) bool {
		return strings.HasPrefix(filepath.Base(path), "libstdc++.so")
	})
	if len(files) == 0 {
		return nil, 0
	}
	f, err := mem.Open(files[0])
	if err != nil {
		return nil, 0
	}
	defer f.Close()
	return lib.Standard(memory.ProcName(f), files[0])
}
