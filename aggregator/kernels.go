package aggregator

import "cmp"

// KernelType is what a kernel is for.
type KernelType uint8

const (
	// ApplicationKernel: it is an operation's, or the program's own.
	ApplicationKernel KernelType = iota
	// FabricKernel: it moves data between chips.
	FabricKernel
	// DispatchKernel: it is the runtime's own, which launches the others.
	DispatchKernel
	NumKernelTypes
)

var kernelTypeNames = [NumKernelTypes]string{"application", "fabric", "dispatch"}

// String is the type in a word.
func (t KernelType) String() string {
	if t < NumKernelTypes {
		return kernelTypeNames[t]
	}
	return "unknown"
}

// Kernel is one binary of a kernel: a kernel has one for each processor that it
// runs on. Its words are the process's own and untrusted.
type Kernel struct {
	// ID is the address of the kernel in its process; its binaries share it.
	ID uint64
	// Name is that of its source, Hash that of the source with all options.
	Name, Hash string
	// Processor is the one that runs it, such as brisc or trisc0.
	Processor string
	Type      KernelType
	// Path of the compiled file as the process sees it, or empty.
	Path string
	// Bytes that are loaded of the file, where it is Sized.
	Bytes uint64
	Sized bool
}

func (k *Kernel) compare(o *Kernel) int {
	return cmp.Or(cmp.Compare(k.Name, o.Name), cmp.Compare(k.Hash, o.Hash), cmp.Compare(k.Processor, o.Processor), cmp.Compare(k.ID, o.ID))
}

// KernelUsage is the kernels of one chip, as many as are compiled for it, which
// need not all be in L1 at a time.
type KernelUsage struct {
	// Programs that have kernels.
	Programs uint64
	// Binaries and their loadable Bytes, by type; each is counted once, on
	// however many cores it runs.
	Binaries, Bytes [NumKernelTypes]uint64
	// Unsized counts the binaries whose size is not known; where it is not 0,
	// Bytes is a lower bound.
	Unsized uint64
	// DRAMCopies are the buffers that hold a copy of kernels, from which they are
	// loaded, and DRAMBytes the bytes asked for them. They are part of the memory.
	DRAMCopies, DRAMBytes uint64
}

func (u *KernelUsage) count(k *Kernel, added bool) {
	n, bytes := uint64(1), k.Bytes
	if !added {
		n, bytes = -n, -bytes
	}
	u.Binaries[k.Type] += n
	u.Bytes[k.Type] += bytes
	if !k.Sized {
		u.Unsized += n
	}
}

// add sums the kernels of several chips.
func (u *KernelUsage) add(o *KernelUsage) {
	u.Programs += o.Programs
	for t := range o.Binaries {
		u.Binaries[t] += o.Binaries[t]
		u.Bytes[t] += o.Bytes[t]
	}
	u.Unsized += o.Unsized
	u.DRAMCopies += o.DRAMCopies
	u.DRAMBytes += o.DRAMBytes
}

// kernels are the share's own usage and its chip's, which change together.
func (s *share) kernels() [2]*KernelUsage { return [2]*KernelUsage{&s.kernel, &s.chip.kernel} }

// loadKernel books a kernel's binary on every chip of its device. The same one
// for another device adds chips, and nothing for the same device.
func (a *Aggregator) loadKernel(p *process, e *Event) {
	k := e.Kernel
	if k == nil || k.Type >= NumKernelTypes || k.Bytes > maxBytes {
		p.counters.Odd++
		return
	}
	if e.Program == 0 {
		p.counters.UnknownKernels++
		return
	}
	pr := p.program(e)
	if !pr.has(k) {
		pr.kernels = append(pr.kernels, k)
		for s := range pr.loaded {
			a.countKernel(p, e.Time, s, e.Program, k, true)
		}
	}
	d := a.device(p, e.Device)
	if d.closed {
		return // what is loaded goes when a device closes
	}
	for _, s := range d.shares {
		if _, ok := pr.loaded[s]; ok {
			continue
		}
		pr.loaded[s] = e.Device
		for _, u := range s.kernels() {
			u.Programs++
		}
		for _, k := range pr.kernels {
			a.countKernel(p, e.Time, s, e.Program, k, true)
		}
	}
}

// KernelChange is a kernel's binary that was loaded for one chip, or unloaded.
type KernelChange struct {
	Time     uint64
	PID      uint32
	Chip     Chip
	Program  uint64
	Unloaded bool
	// Total is the size of all kernels on the chip after the change, of all
	// processes and types, bytes.
	Total  uint64
	Kernel *Kernel
}

// countKernel books a binary that came to a chip or went.
func (a *Aggregator) countKernel(p *process, time uint64, s *share, program uint64, k *Kernel, loaded bool) {
	for _, u := range s.kernels() {
		u.count(k, loaded)
	}
	if a.OnKernelChange != nil {
		c := KernelChange{Time: time, PID: p.pid, Chip: s.chip.id, Program: program, Unloaded: !loaded, Kernel: k}
		for _, n := range s.chip.kernel.Bytes {
			c.Total += n
		}
		a.OnKernelChange(c)
	}
}

func (pr *program) has(k *Kernel) bool {
	for _, o := range pr.kernels {
		if o.ID == k.ID && o.Processor == k.Processor && o.Hash == k.Hash {
			return true
		}
	}
	return false
}

// unload takes a program's kernels off a chip.
func (a *Aggregator) unload(p *process, e *Event, s *share, id uint64) {
	pr := p.programs[id]
	delete(pr.loaded, s)
	for _, u := range s.kernels() {
		u.Programs--
	}
	for _, k := range pr.kernels {
		a.countKernel(p, e.Time, s, id, k, false)
	}
}

// copyKernels marks the buffer that a program's kernels were copied to.
func (a *Aggregator) copyKernels(p *process, e *Event) {
	b := p.buffers.get(e.Buffer)
	if b == nil || b.address != e.Address {
		p.counters.Odd++
		return
	}
	if !b.kernels {
		b.kernels = true
		b.countCopy(true)
	}
}

// countCopy books a buffer that holds kernels, and no other.
func (b *buffer) countCopy(added bool) {
	if !b.kernels {
		return
	}
	n, bytes := uint64(1), b.size
	if !added {
		n, bytes = -n, -bytes
	}
	for _, s := range b.device.shares {
		for _, u := range s.kernels() {
			u.DRAMCopies += n
			u.DRAMBytes += bytes
		}
	}
}

func (p *process) launch(e *Event) {
	p.counters.Launches += e.Count
	if e.Program == 0 {
		p.counters.UnknownLaunches += e.Count
		return
	}
	// One that is not there went with its device, before its launches were read.
	if pr := p.programs[e.Program]; pr != nil {
		pr.launches += e.Count
		pr.launched = max(pr.launched, e.Time)
		if e.Size > 0 && e.Size <= maxRing {
			pr.config = e.Size
		}
	}
}
