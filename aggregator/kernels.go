package aggregator

import (
	"cmp"
	"slices"

	"tt-memtrace/aggregator/exact"
)

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
	// ID is the TT kernel's address in its process; its binaries share it.
	ID uint64 `rec:"ID"`
	// Name is that of its source, Hash that of the source with all options.
	Name string `rec:"Name"`
	Hash string `rec:"Hash"`
	// Processor is the one that runs it, such as brisc or trisc0.
	Processor string     `rec:"Processor"`
	Type      KernelType `rec:"Type"`
	// Path of the compiled file as the process sees it, or empty.
	Path string `rec:"Path"`
	// Bytes is how much of the file is loaded, if Sized.
	Bytes uint64 `rec:"Bytes"`
	Sized bool   `rec:"Sized"`
	// Cores is the number of cores that it runs on, 0 if unknown.
	Cores uint64 `rec:"Cores"`
}

// Size is how much of the file is loaded, bytes.
func (k *Kernel) Size() exact.Quantity { return exact.Sum(k.Bytes, k.Sized) }

// OnCores is its bytes times the cores that it runs on, if both are known.
func (k *Kernel) OnCores() (bytes uint64, known bool) {
	return k.Bytes * k.Cores, k.Sized && k.Cores > 0
}

func (k *Kernel) compare(o *Kernel) int {
	return cmp.Or(cmp.Compare(k.Name, o.Name), cmp.Compare(k.Hash, o.Hash), cmp.Compare(k.Processor, o.Processor), cmp.Compare(k.ID, o.ID))
}

// KernelTally is what the accounts count of the kernels that are compiled for one chip.
type KernelTally struct {
	// Programs that have kernels.
	Programs uint64 `rec:"Programs"`
	// Binaries and their loadable Bytes, by type; each is counted once, on
	// however many cores it runs.
	Binaries [NumKernelTypes]uint64 `rec:"Binaries"`
	Bytes    [NumKernelTypes]uint64 `rec:"Bytes"`
	// Unsized counts the binaries of unknown size; if it is not 0, Bytes is a lower bound.
	Unsized uint64 `rec:"Unsized"`
	// CoreBytes are the bytes times the cores that each binary runs on, of the
	// WithCores binaries whose size and cores are known.
	CoreBytes [NumKernelTypes]uint64 `rec:"CoreBytes"`
	WithCores uint64                 `rec:"WithCores"`
	// DRAMCopies counts the buffers that hold a copy of kernels, from which they are loaded, and DRAMBytes the bytes
	// requested for them. They are part of the memory.
	DRAMCopies uint64 `rec:"DRAMCopies"`
	DRAMBytes  uint64 `rec:"DRAMBytes"`
}

// KernelUsage is the kernels that are compiled for one chip. They need not all be in L1 at a time.
type KernelUsage struct {
	// Programs that have kernels.
	Programs exact.Quantity
	// Binaries and their loadable BytesOf, by type; each is counted once, on however many cores it runs. Bytes is the
	// sum. The bytes are lower bounds if there are Unsized binaries, whose size is unknown.
	Binaries, BytesOf [NumKernelTypes]exact.Quantity
	Bytes, Unsized    exact.Quantity
	// OnCores sums bytes times cores: a lower bound if the size or the cores of a binary are unknown.
	OnCores exact.Quantity
	// DRAMCopies counts the buffers that hold a copy of kernels, from which they are loaded, and DRAMBytes the bytes
	// requested for them. They are part of the memory.
	DRAMCopies, DRAMBytes exact.Quantity
}

// EmptyKernelUsage returns the use of a chip that never had kernels.
func EmptyKernelUsage() KernelUsage { return new(KernelTally).shown() }

func (u *KernelTally) shown() (s KernelUsage) {
	var binaries, bytes, onCores uint64
	for t, n := range u.Binaries {
		s.Binaries[t], s.BytesOf[t] = exact.Of(n), exact.Sum(u.Bytes[t], u.Unsized == 0)
		binaries, bytes, onCores = binaries+n, bytes+u.Bytes[t], onCores+u.CoreBytes[t]
	}
	s.Bytes, s.OnCores = exact.Sum(bytes, u.Unsized == 0), exact.Sum(onCores, u.WithCores == binaries)
	s.Programs, s.Unsized = exact.Of(u.Programs), exact.Of(u.Unsized)
	s.DRAMCopies, s.DRAMBytes = exact.Of(u.DRAMCopies), exact.Of(u.DRAMBytes)
	return s
}

// hide makes each 0 unknown if h says that programs may be hidden.
func (u *KernelUsage) hide(h Hidden) {
	unseen(h.Programs, &u.Programs, &u.Bytes, &u.Unsized, &u.OnCores, &u.DRAMCopies, &u.DRAMBytes)
	for t := range u.Binaries {
		unseen(h.Programs, &u.Binaries[t], &u.BytesOf[t])
	}
}

func (u *KernelTally) count(k *Kernel, added bool) {
	n, bytes := uint64(1), k.Bytes
	onCores, known := k.OnCores()
	if !added {
		n, bytes, onCores = -n, -bytes, -onCores
	}
	if known {
		u.CoreBytes[k.Type] += onCores
		u.WithCores += n
	}
	u.Binaries[k.Type] += n
	u.Bytes[k.Type] += bytes
	if !k.Sized {
		u.Unsized += n
	}
}

// add sums the kernels of several chips.
func (u *KernelTally) add(o *KernelTally) {
	u.Programs += o.Programs
	for t := range o.Binaries {
		u.Binaries[t] += o.Binaries[t]
		u.Bytes[t] += o.Bytes[t]
		u.CoreBytes[t] += o.CoreBytes[t]
	}
	u.WithCores += o.WithCores
	u.Unsized += o.Unsized
	u.DRAMCopies += o.DRAMCopies
	u.DRAMBytes += o.DRAMBytes
}

// kernels returns the share's own usage and its chip's, which change together.
func (s *share) kernels() [2]*KernelTally { return [2]*KernelTally{&s.kernel, &s.chip.kernel} }

// maxCores is more than a chip has.
const maxCores = 1 << 16

// loadKernel adds a kernel's binary on every chip of its device. A second device adds its chips. A repeat is ignored,
// unless it has the binary's size or cores, which could not be read before.
func (a *Aggregator) loadKernel(p *process, e *Event) {
	k := e.Kernel
	if k == nil || k.Type >= NumKernelTypes || k.Bytes > maxBytes || k.Cores > maxCores {
		p.odd(e)
		return
	}
	if e.Program == 0 {
		p.counters.UnknownKernels++
		return
	}
	pr := a.program(p, e)
	switch i := pr.kernel(k); {
	case i < 0:
		pr.kernels = append(pr.kernels, k)
		for _, s := range pr.shares() {
			a.countKernel(p, e.Time, s, e.Program, k, true)
		}
	case k.knowsMore(pr.kernels[i]):
		for _, s := range pr.shares() {
			for _, u := range s.kernels() {
				u.count(pr.kernels[i], false)
			}
			a.countKernel(p, e.Time, s, e.Program, k, true)
		}
		pr.kernels[i] = k
	}
	d := a.device(p, e.Device)
	if d.closed {
		return // a closed device has no kernels
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

// KernelChange is a kernel binary that was loaded for a chip, or unloaded.
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

// countKernel adds a binary to a chip, or removes it.
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

// knowsMore reports whether k knows the size or the cores of a binary that o does not know, and all that o knows.
func (k *Kernel) knowsMore(o *Kernel) bool {
	sized, placed := k.Sized && !o.Sized, k.Cores > 0 && o.Cores == 0
	return (sized || placed) && (k.Sized || !o.Sized) && (k.Cores > 0 || o.Cores == 0)
}

// kernel returns the index of a kernel's binary, or -1.
func (pr *program) kernel(k *Kernel) int {
	return slices.IndexFunc(pr.kernels, func(o *Kernel) bool {
		return o.ID == k.ID && o.Processor == k.Processor && o.Hash == k.Hash
	})
}

// unload removes a program's kernels from a chip.
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

// copyKernels marks the buffer that holds a copy of a program's kernels.
func (a *Aggregator) copyKernels(p *process, e *Event) {
	b := p.buffers.get(e.Buffer)
	if b == nil || b.address != e.Address {
		p.odd(e)
		return
	}
	if !b.kernels {
		b.kernels = true
		b.countCopy(true)
	}
}

// countCopy adds or removes a buffer that holds kernels; it ignores others.
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
