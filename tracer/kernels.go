package tracer

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
)

// relations is which of a process's objects belong together: kernels to
// programs, programs to workloads. Events speak of programs only.
type relations struct {
	kernels   map[uint64]uint64 // Kernel to ProgramImpl
	programs  map[uint64]*compiled
	workloads map[uint64]*workload
	// told is what went out as events, by object.
	told map[uint64]told
	// unknown objects were launched: their record may be under way still.
	unknown map[uint64]bool
	sizes   map[string]size
	callers []callerRange
	// replays of traces, and rings by the runtime's objects of them.
	replays map[replayed]replay
	rings   map[uint64]configRing
	// marked are the dataflow buffers that a thread placed last, at one address.
	marked map[uint32][]*aggregator.CircularBuffer
	// placing are the programs whose scratchpads are asked for next, and calls
	// counts how often any were told of.
	placing []placing
	calls   uint32
}

// compiled is a program with kernels.
type compiled struct {
	workload uint64
	kernels  []uint64
	// scratchpads that were told of, by device.
	scratchpads map[uint64][]*aggregator.CircularBuffer
}

// workload is programs that are launched together.
type workload struct {
	programs []uint64
	name     string
	// asked: its name was looked for.
	asked bool
}

// size is the loadable bytes of a file, where it could be read.
type size struct {
	bytes uint64
	known bool
}

// maxSizes bounds the files that are remembered of a process.
const maxSizes = 1 << 16

func (r *run) relations(pid uint32) *relations {
	rel := r.related[pid]
	if rel == nil {
		rel = &relations{
			kernels: map[uint64]uint64{}, programs: map[uint64]*compiled{}, workloads: map[uint64]*workload{},
			told: map[uint64]told{}, unknown: map[uint64]bool{}, sizes: map[string]size{},
			replays: map[replayed]replay{}, rings: map[uint64]configRing{}, marked: map[uint32][]*aggregator.CircularBuffer{},
		}
		r.related[pid] = rel
	}
	return rel
}

func (rel *relations) program(id uint64) *compiled {
	c := rel.programs[id]
	if c == nil {
		c = &compiled{}
		rel.programs[id] = c
	}
	return c
}

func (rel *relations) workload(id uint64) *workload {
	w := rel.workloads[id]
	if w == nil {
		w = &workload{}
		rel.workloads[id] = w
	}
	return w
}

// dropProgram forgets a program that was destroyed, and its kernels.
func (rel *relations) dropProgram(id uint64) {
	c := rel.programs[id]
	if c == nil {
		return
	}
	for _, k := range c.kernels {
		if rel.kernels[k] == id {
			delete(rel.kernels, k)
		}
	}
	if w := rel.workloads[c.workload]; w != nil {
		w.programs = slices.DeleteFunc(w.programs, func(p uint64) bool { return p == id })
	}
	delete(rel.programs, id)
	rel.dropLaunches(id)
}

func (rel *relations) dropWorkload(id uint64) {
	if w := rel.workloads[id]; w != nil {
		for _, p := range w.programs {
			if c := rel.programs[p]; c != nil && c.workload == id {
				c.workload = 0
			}
		}
	}
	delete(rel.workloads, id)
	rel.dropLaunches(id)
}

// dropLaunches: the kernel dropped them too, and counts anew for what comes at this address.
func (rel *relations) dropLaunches(id uint64) {
	delete(rel.told, id)
	delete(rel.unknown, id)
}

// kernel takes in the records that are about kernels, programs and workloads.
func (r *run) kernel(head *bpf.MemtraceTtHead, b []byte) {
	r.process(head)
	switch kind := bpf.MemtraceTtKind(head.Kind); {
	case kind == bpf.MemtraceTtKindTT_KERNEL_ADDED && len(b) >= int(unsafe.Sizeof(bpf.MemtraceTtPair{})):
		e := (*bpf.MemtraceTtPair)(unsafe.Pointer(&b[0]))
		rel := r.relations(head.Pid)
		r.processes[head.Pid].touch(e.Owner)
		r.kernelAdded(head, rel, e.Owner, e.Member)
	case kind == bpf.MemtraceTtKindTT_PROGRAM_ADDED && len(b) >= int(unsafe.Sizeof(bpf.MemtraceTtPair{})):
		e := (*bpf.MemtraceTtPair)(unsafe.Pointer(&b[0]))
		rel := r.relations(head.Pid)
		w := rel.workload(e.Owner)
		w.programs = append(w.programs, e.Member)
		rel.program(e.Member).workload = e.Owner
		if w.name != "" {
			r.named(head.Pid, head.Time, []uint64{e.Member}, w.name)
		}
	case kind == bpf.MemtraceTtKindTT_SCRATCHPADS && len(b) >= int(unsafe.Sizeof(bpf.MemtraceTtPair{})):
		e := (*bpf.MemtraceTtPair)(unsafe.Pointer(&b[0]))
		rel := r.relations(head.Pid)
		if c := rel.programs[e.Owner]; c != nil {
			delete(c.scratchpads, e.Member) // a new layout is told of, if it is the same too
		}
		rel.placing = append(rel.placing, placing{e.Owner, e.Member, head.Time, firstAsked})
	case kind == bpf.MemtraceTtKindTT_KERNEL_FILE && len(b) >= int(unsafe.Sizeof(bpf.MemtraceTtText{})):
		e := (*bpf.MemtraceTtText)(unsafe.Pointer(&b[0]))
		r.kernelFile(head, e.Object, e.Device, textOf(e), e.Left == 0)
	case kind == bpf.MemtraceTtKindTT_WORKLOAD_NAMED && len(b) >= int(unsafe.Sizeof(bpf.MemtraceTtText{})):
		e := (*bpf.MemtraceTtText)(unsafe.Pointer(&b[0]))
		w := r.relations(head.Pid).workload(e.Object)
		w.name, w.asked = textOf(e), true
		r.named(head.Pid, head.Time, w.programs, w.name)
	case kind == bpf.MemtraceTtKindTT_KERNEL_COPY && len(b) >= int(unsafe.Sizeof(bpf.MemtraceTtCopy{})):
		e := (*bpf.MemtraceTtCopy)(unsafe.Pointer(&b[0]))
		r.emit(aggregator.Event{Kind: aggregator.KernelsCopied, PID: head.Pid, TID: head.Tid, Time: head.Time,
			Program: e.Program, Buffer: e.Buffer, Address: e.Address})
	}
}

func (r *run) kernelAdded(head *bpf.MemtraceTtHead, rel *relations, program, kernel uint64) {
	rel.kernels[kernel] = program
	c := rel.program(program)
	c.kernels = append(c.kernels, kernel)
	r.emit(aggregator.Event{Kind: aggregator.KernelAdded, PID: head.Pid, TID: head.Tid, Time: head.Time, Program: program})
}

func textOf(e *bpf.MemtraceTtText) string {
	return string(e.Text[:min(int(e.Length), len(e.Text))])
}

func (r *run) named(pid uint32, at uint64, programs []uint64, name string) {
	if name == "" {
		return
	}
	for _, p := range programs {
		r.emit(aggregator.Event{Kind: aggregator.ProgramNamed, PID: pid, Time: at, Program: p, Operation: name})
	}
}

// kernelFile takes in that a kernel's binary is read from a file, for a device.
// Of a name that is not whole, the end is there.
func (r *run) kernelFile(head *bpf.MemtraceTtHead, kernel, device uint64, file string, whole bool) {
	k, ok := kernelOf(file, whole)
	if !ok {
		return // firmware, which is of no program
	}
	if p := r.process(head); p != nil {
		if _, known := p.devices[device]; !known {
			if _, _, _, err := p.device(device); err == nil {
				r.device(p, head, device)
			}
		}
	}
	rel := r.relations(head.Pid)
	k.ID = kernel
	if whole {
		k.Path = file
		s, ok := rel.sizes[file]
		if !ok {
			n, err := loadable(head.Pid, file)
			s = size{n, err == nil}
			if len(rel.sizes) < maxSizes {
				rel.sizes[file] = s
			}
		}
		k.Bytes, k.Sized = s.bytes, s.known
	}
	r.emit(aggregator.Event{Kind: aggregator.KernelLoaded, PID: head.Pid, TID: head.Tid, Time: head.Time,
		Program: rel.kernels[kernel], Device: device, Kernel: &k})
}

// kernelOf takes the path of a kernel's binary apart:
// …/kernels/<name>/<hash>/<processor>/<processor>.elf. Of one that is not whole,
// only the end is there.
func kernelOf(file string, whole bool) (aggregator.Kernel, bool) {
	parts := strings.FieldsFunc(file, func(c rune) bool { return c == '/' })
	n := len(parts)
	if n < 4 || whole && n == 4 || n > 4 && parts[n-5] != "kernels" && (whole || n > 5) {
		return aggregator.Kernel{}, false
	}
	return aggregator.Kernel{
		Name: parts[n-4], Hash: parts[n-3], Processor: strings.TrimSuffix(parts[n-1], path.Ext(parts[n-1])),
		Type: kernelType(parts[n-4]),
	}, true
}

// kernelType goes by the names that the runtime's own kernels have.
func kernelType(name string) aggregator.KernelType {
	switch {
	case strings.HasPrefix(name, "cq_"):
		return aggregator.DispatchKernel
	case strings.HasPrefix(name, "fabric_"), strings.HasPrefix(name, "tt_fabric_"):
		return aggregator.FabricKernel
	}
	return aggregator.ApplicationKernel
}

// loadable reads how many bytes of an ELF file are loaded, from its program
// headers alone. The path is the process's own, and never leads out of its root.
func loadable(pid uint32, file string) (uint64, error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "opening the root of process", Path: fmt.Sprint(pid), Err: err}
	}
	defer unix.Close(root)
	// O_NONBLOCK, so that a FIFO blocks nobody.
	fd, err := unix.Openat2(root, file, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return 0, &os.PathError{Op: "opening", Path: file, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, fmt.Errorf("reading %s: not a regular file", file)
	}
	return loadableBytes(f)
}

var errNotELF = errors.New("not a little-endian ELF file")

// maxProgs is more program headers than any kernel has.
const maxProgs = 64

// loadableBytes sums what the file has of its loadable segments.
func loadableBytes(r io.ReaderAt) (uint64, error) {
	var ident [elf.EI_NIDENT]byte
	if err := readAt(r, 0, &ident); err != nil || string(ident[:4]) != elf.ELFMAG || elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return 0, errNotELF
	}
	var sum uint64
	switch elf.Class(ident[elf.EI_CLASS]) {
	case elf.ELFCLASS32:
		var h elf.Header32
		if err := readAt(r, 0, &h); err != nil {
			return 0, err
		}
		progs := make([]elf.Prog32, min(h.Phnum, maxProgs))
		if int(h.Phentsize) != binary.Size(elf.Prog32{}) || h.Phnum > maxProgs {
			return 0, errNotELF
		}
		if err := readAt(r, int64(h.Phoff), progs); err != nil {
			return 0, err
		}
		for _, p := range progs {
			if elf.ProgType(p.Type) == elf.PT_LOAD {
				sum += uint64(p.Filesz)
			}
		}
	case elf.ELFCLASS64:
		var h elf.Header64
		if err := readAt(r, 0, &h); err != nil {
			return 0, err
		}
		progs := make([]elf.Prog64, min(h.Phnum, maxProgs))
		if int(h.Phentsize) != binary.Size(elf.Prog64{}) || h.Phnum > maxProgs {
			return 0, errNotELF
		}
		if err := readAt(r, int64(h.Phoff), progs); err != nil {
			return 0, err
		}
		for _, p := range progs {
			if elf.ProgType(p.Type) == elf.PT_LOAD {
				sum += p.Filesz
			}
		}
	default:
		return 0, errNotELF
	}
	const most = 1 << 30 // bytes; a kernel has some thousand
	if sum > most {
		return 0, errNotELF
	}
	return sum, nil
}

// launchEvery is how often what the kernel counts without a record is read.
const launchEvery = 500 * time.Millisecond

// counted tells of launches, replays and rings, at the most every launchEvery
// unless now is set.
func (r *run) counted(now bool) {
	if !now && time.Since(r.launchedAt) < launchEvery {
		return
	}
	r.launchedAt = time.Now()
	r.launches()
	r.rings()
}

// launches turns the kernel's counts of launches into events.
func (r *run) launches() {
	if r.launchKeys == nil {
		r.launchKeys = make([]bpf.MemtraceTtLaunchKey, 4096)
		r.launchValues = make([]bpf.MemtraceTtLaunch, 4096)
	}
	var cursor ebpf.MapBatchCursor
	for {
		n, err := r.t.objects.Launches.BatchLookup(&cursor, r.launchKeys, r.launchValues, nil)
		for i := range n {
			key := r.launchKeys[i]
			if r.processes[key.Pid] == nil && CheckPID(key.Pid) != nil {
				r.t.objects.Launches.Delete(key) // it ended before it was watched
				continue
			}
			if key.Trace != 0 {
				r.replay(key, &r.launchValues[i])
			} else {
				r.launch(key.Pid, key.Object, &r.launchValues[i])
			}
		}
		if err != nil {
			return // ErrKeyNotExist is the end
		}
	}
}

// told is what went out as events of an object's launches.
type told struct{ count, config uint64 }

// launch tells of the launches of a workload, or of a program, that were not told yet.
func (r *run) launch(pid uint32, object uint64, l *bpf.MemtraceTtLaunch) {
	rel := r.relations(pid)
	before := rel.told[object]
	if l.Count < before.count || l.Count == before.count && l.Config == before.config {
		// Fewer: another object came to this address, and the old one's end is
		// among the records still.
		return
	}
	w, c := rel.workloads[object], rel.programs[object]
	if w == nil && c == nil && !rel.unknown[object] {
		w = r.adopt(pid, rel, object)
	}
	if w == nil && c == nil && !rel.unknown[object] {
		rel.unknown[object] = true // its record may have come after the last look at the ring
		return
	}
	rel.told[object] = told{l.Count, l.Config}
	e := aggregator.Event{Kind: aggregator.Launched, PID: pid, Time: l.Last, Count: l.Count - before.count, Size: l.Config}
	switch {
	case w != nil:
		if !w.asked {
			w.asked = true
			w.name = r.operation(pid, l.Caller)
			r.named(pid, l.Last, w.programs, w.name)
		}
		for _, p := range w.programs {
			e.Program = p
			r.emit(e)
		}
	case c != nil && c.workload != 0:
		// The workload's launch, chip by chip: counted once, as that.
	default:
		if c != nil {
			e.Program = object
		}
		r.emit(e)
	}
}

// adopt finds out which programs a workload has that was made before tracing
// began: it keeps them in nodes of a list, each with a program that is known.
func (r *run) adopt(pid uint32, rel *relations, object uint64) *workload {
	p := r.processes[pid]
	if p == nil || !p.books.read {
		return nil
	}
	const head, node, most = 0x200, 0x180, 1024 // bytes, bytes, programs
	memory := p.pages()
	inNode := func(at uint64) uint64 {
		for o := uint64(0); o < node; o += 8 {
			if v, err := memory.u64(at + o); err != nil {
				return 0
			} else if rel.programs[v] != nil {
				return v
			}
		}
		return 0
	}
	for o := uint64(0); o < head; o += 8 {
		first, err := memory.u64(object + o)
		if err != nil {
			return nil
		}
		if first == 0 || first%8 != 0 || inNode(first) == 0 {
			continue
		}
		w := rel.workload(object)
		for at, n := first, 0; at != 0 && n < most; n++ {
			id := inNode(at)
			if id == 0 {
				break
			}
			if c := rel.programs[id]; c.workload == 0 {
				c.workload = object
				w.programs = append(w.programs, id)
			}
			if at, err = memory.u64(at); err != nil {
				break
			}
		}
		return w
	}
	return nil
}

// forget drops what is known of a process that is gone.
func (r *run) forget(pid uint32) {
	r.forgetRings(pid, func(configRing) bool { return true })
	delete(r.related, pid)
	var key bpf.MemtraceTtLaunchKey
	var gone []bpf.MemtraceTtLaunchKey
	var value bpf.MemtraceTtLaunch
	for it := r.t.objects.Launches.Iterate(); it.Next(&key, &value); {
		if key.Pid == pid {
			gone = append(gone, key)
		}
	}
	for _, k := range gone {
		r.t.objects.Launches.Delete(k)
	}
}
