// Package inspect reads what one live process of the runtime holds: devices, allocators, buffers, programs and
// kernels. It evaluates the runtime's own functions over the process's memory, which it only reads. It needs no
// probes and returns values.
package inspect

import (
	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/buffers"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// Inspector answers questions about one process. Each answer is from its memory as it is then.
type Inspector struct {
	*view.Process
	// seen, if not nil, is the memory from which all questions are answered: see AsOfNow and Together.
	seen *view.View
	// earlier, if not nil, is what the last scans of its allocators found: see Repeatedly.
	earlier buffers.Earlier
}

// New returns the Inspector of a process that maps a library.
func New(lib *metal.Library, m proc.Mapping) *Inspector { return NewOver(memory.Of(m.PID), lib, m) }

// NewOver does what New does, over memory that is read in another way.
func NewOver(mem *memory.Process, lib *metal.Library, m proc.Mapping) *Inspector {
	return &Inspector{Process: view.ProcessOf(mem, lib, m)}
}

// Repeatedly returns an Inspector that scans allocators faster if they are scanned often. Only one goroutine may use
// it at a time.
func (in *Inspector) Repeatedly() *Inspector {
	return &Inspector{Process: in.Process, earlier: buffers.Earlier{}}
}

// Apart returns an Inspector of the same process for another goroutine.
func (in *Inspector) Apart() *Inspector { return &Inspector{Process: in.Process} }

// AsOfNow returns an Inspector for one goroutine whose answers all see the process's memory as it was first read. So
// what many objects have in common is read once.
func (in *Inspector) AsOfNow() *Inspector { return &Inspector{Process: in.Process, seen: in.View()} }

// Together has all answers, from one goroutine, see the process's memory as it was first read, until end is called.
func (in *Inspector) Together() (end func()) {
	in.seen = in.View()
	return func() { in.seen = nil }
}

// view returns the memory from which a question is answered.
func (in *Inspector) view() *view.View {
	if in.seen != nil {
		return in.seen
	}
	return in.View()
}

// Scan reads what a process holds: its open devices, the buffers of their allocators, and its programs except for
// known ones. It takes about a tenth of a second, plus a hundredth per program; the process keeps running. If the
// process was forked from another one, fork describes that, and Scan leaves out copies of its objects. reserved is as
// in ScanAllocators.
func (in *Inspector) Scan(
	layout *metal.Layout, known map[uint64]bool, fork *Fork, reserved func(*aggregator.LiveBuffer) bool,
) (*ProcessScan, error) {
	return scanProcess(in.Process, in.earlier, layout, known, fork, reserved)
}

// ScanAllocators reads the buffers of the allocators. It leaves out an allocator that changes too fast or is gone.
// reserved, if not nil, fills in a buffer's size in each bank and returns true if that is known; the others are read
// from the process.
func (in *Inspector) ScanAllocators(
	b *ProcessScan, layout *metal.Layout, allocators []uint64, reserved func(*aggregator.LiveBuffer) bool,
) error {
	return scanAllocators(in.Process, in.earlier, b, layout, allocators, reserved)
}

// HoldsDevices reports whether the process has devices open by this library.
func (in *Inspector) HoldsDevices() (bool, error) { return holdsDevices(in.Process) }

// Device reads which chips a Device or MeshDevice spans, by the process's own numbers.
func (in *Inspector) Device(address uint64) (chips []uint32, mesh bool, arch string, err error) {
	return readDevice(in.view(), address)
}

// DeviceOfQueue returns the first device to which a word of the command queue leads. It recognizes a device by its
// vptr, so the queue's layout does not matter.
func (in *Inspector) DeviceOfQueue(queue uint64) (uint64, error) {
	return deviceOfQueue(in.view(), queue)
}

// IsOpen reports whether a device is open. If it cannot be read it counts as closed, except after memory.ErrLater.
func (in *Inspector) IsOpen(device uint64) bool { return mayBeOpen(in.view(), device) }

// IsClosed reports whether the device's memory says that it is closed, or no device is there any more. If that cannot
// be read now, it returns false.
func (in *Inspector) IsClosed(device uint64) bool { return isClosed(in.view(), device) }

// SaysClosed does what IsClosed does, except that unmapped memory says nothing.
func (in *Inspector) SaysClosed(device uint64) bool { return saysClosed(in.view(), device) }

// Within reports whether a device is a submesh of a mesh, or of one of its submeshes.
func (in *Inspector) Within(device, mesh uint64) bool { return isWithin(in.view(), device, mesh) }

// InRange returns the devices of a mesh that a range covers.
func (in *Inspector) InRange(mesh uint64, of MeshRange) ([]uint64, error) {
	return devicesInRange(in.view(), mesh, of)
}

// AllocatorOf reads a device's allocator and its banks. It fails unless all of it is known.
func (in *Inspector) AllocatorOf(device uint64) (allocator uint64, c aggregator.Capacity, err error) {
	return allocatorWithBanks(in.view(), device)
}

// Capacity reads an allocator's banks. A memory that cannot be read stays unknown.
func (in *Inspector) Capacity(allocator uint64) (aggregator.Capacity, error) {
	return capacityOf(in.view(), allocator)
}

// Resized reports whether an allocator's L1 has another size than known: a sub-device manager can take some of it.
func (in *Inspector) Resized(allocator uint64, known uint64) bool {
	return isResized(in.view(), allocator, known)
}

// Bank reads the numbers of an allocator's memory from which reserved sizes are computed. They do not change while
// the allocator lives.
func (in *Inspector) Bank(
	sizes *metal.ReservedSizes, allocator uint64, memory aggregator.Memory,
) (metal.Bank, error) {
	return buffers.Bank(in.view(), sizes, allocator, memory)
}

// FindsPrograms reports whether the library shows which programs a process has.
func (in *Inspector) FindsPrograms() bool { return programVptr(in.Process) != 0 }

// ProgramNumber returns the runtime's number of a program; another program at the same address has another one. It is
// 0 if it cannot be read.
func (in *Inspector) ProgramNumber(program uint64) uint64 { return programNumber(in.view(), program) }

// ProgramState is a checksum of a program's own bytes, 0 if they cannot be read. It changes when the program is
// placed.
func (in *Inspector) ProgramState(program uint64) uint64 { return programState(in.view(), program) }

// ProgramsOfWorkload returns the known programs of a workload, which keeps them in the nodes of a list.
func (in *Inspector) ProgramsOfWorkload(workload uint64, known func(program uint64) bool) []uint64 {
	return programsOfWorkload(in.Process, workload, known)
}

// ConfigSize returns a program's size in the kernel-config ring of each worker core, in bytes; 0 if it cannot be
// read.
func (in *Inspector) ConfigSize(program uint64) uint64 { return configSize(in.view(), program) }

// ConfigRings reads the kernel-config rings of a mesh, one for each of its command queues and sub-devices. A Device
// that is no mesh has none. The error wraps metal.ErrUnsupported if the library does not show how to read them.
func (in *Inspector) ConfigRings(mesh uint64) ([]aggregator.ConfigRing, error) {
	return ringsOf(in.view(), mesh)
}

// Cores returns on how many cores a kernel runs; 0 if unknown.
func (in *Inspector) Cores(kernel uint64) uint64 { return coresOfKernel(in.view(), kernel) }

// Scratchpads reads a kernel's scratchpads. Most kernels have none, which takes one evaluation to see.
func (in *Inspector) Scratchpads(kernel uint64) ([]*aggregator.CircularBuffer, error) {
	return scratchpadsOf(in.view(), kernel)
}

// OlderThanTraces returns nil if each buffer of a scan is older than every trace that the process has captured, so that
// no replay can have overwritten it. Otherwise it says why this is not known.
func (in *Inspector) OlderThanTraces(b *ProcessScan) error { return olderThanTraces(in.view(), b) }

// UniqueIDs reads the unique ID of each chip, by the process's own numbers. It finds the driver library's description
// of the cluster through the runtime's function that asks it for boards.
func (in *Inspector) UniqueIDs() (map[uint32]uint64, error) { return uniqueIDs(in.view()) }

// LacksProbe reports whether the process runs code that lacks one of its library's probes. The kernel puts no
// probes into writable pages, nor into memory to which the code was moved (to get huge pages, for example). If the
// process cannot be read, it returns false.
func (in *Inspector) LacksProbe(probes []metal.Probe) bool {
	at := make([]uint64, len(probes))
	for i, p := range probes {
		at[i] = in.Base + p.Address + p.Skipped
	}
	is, _ := in.Mem.ReadEach(at, 0, 1)
	var was [1]byte
	for i, p := range probes[:len(is)] {
		if in.Lib.ReadCode(was[:], p.Address+p.Skipped) && is[i] == was[0] {
			return true
		}
	}
	return false
}
