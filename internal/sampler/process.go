package sampler

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// process is a process that is sampled. While it is busy, only its look uses its fields, except for those of the run.
type process struct {
	pid     uint32
	user    uint32
	mapping proc.Mapping
	library *library
	memory  *memory.Process
	*inspect.Inspector
	chips *inspect.Chips
	info  aggregator.Process
	// image is what runs in it: another one, at the same PID, is another process. It is nil where it could not be opened.
	image *proc.Image

	// The fields of the run. busy means that a look is under way; hangs, that no round waits for it any more.
	busy    bool
	look    *look
	hangs   bool
	noticed bool // a notice about its looks was given
	// unreadLooks is how many looks in a row could not read all programs.
	unreadLooks int
	// unread means that it has ReasonScanFailed.
	unread bool
	// hungNoticed means that a notice said that its memory does not answer.
	hungNoticed bool

	// What it holds, as of the last look that read everything.
	devices    map[uint64]uint64 // open devices, with their allocators
	managers   map[uint64]uint64 // sub-device managers, by mesh
	allocators []uint64
	// sizes are the bytes of a bank of their L1, where known.
	sizes   map[uint64]uint64
	buffers map[uint64]*held
	// round counts the looks whose buffers were compared.
	round    uint64
	programs map[uint64]program // those that were placed when they were read
	// unplaced are programs that were not placed when they were read, or whose device was unknown.
	unplaced map[uint64]unplaced
	files    *inspect.KernelFiles
	rings    inspect.Rings
	// ringUnread means that the last look could not read a config ring. The next one tries again even if the process rests.
	ringUnread bool

	// used are devices on which new buffers were found, so they are no copies of another process's devices.
	used map[uint64]bool

	// did is the activity when the last look began, and searched when the last complete search began.
	did, searched proc.Activity
	// rested means that the process did nothing during the last look.
	rested bool
	// whole means that the last look read everything.
	whole bool
	// searchCost is the CPU time of the last search. It is 0 after the first one, which costs more than later ones.
	searchCost time.Duration
	lastSearch time.Time // when the last search began
	// calls numbers the programs that were read. Buffers of a higher call replace those that a program had before.
	calls uint32
	// copies are the files that it has loaded and that may be the runtime. loadedTwice means that two of them are, or may be;
	// loadedTwiceMarked, that the process is marked because of that.
	copies                         []proc.Mapping
	loadedTwice, loadedTwiceMarked bool
	// shown means that events of its first look were made.
	shown bool
	// unsearched is the detail of ReasonScanTimeout if the process has that, or "".
	unsearched string
	failed     int // looks in a row that failed
}

// held is a buffer that was found in a round.
type held struct {
	aggregator.LiveBuffer
	round uint64
	// confirmed means that two looks read the same. A single look can give it the reserved size of another buffer, because it
	// reads the allocator's blocks at another moment than the buffers.
	confirmed bool
}

// program is a program that was read. A later one at the same address has another number.
type program struct {
	number uint64
	placed bool
	// chipsUnknown is why its chips within a mesh are unknown, or nil. tries counts the attempts to find them while the
	// process rested, with this activity.
	chipsUnknown error
	tries        int
	did          proc.Activity
}

// unplaced is a program that was not placed, or whose device was unknown. It is read again once its state has changed, or
// other devices are open.
type unplaced struct {
	number, state uint64
	devices       []uint64
}

// remains reports whether an unplaced program has not changed, nor the open devices.
func (u unplaced) remains(number, state uint64, devices []uint64) bool {
	return u.state != 0 && u.state == state && u.number == number && slices.Equal(u.devices, devices)
}

// openDevices returns the devices that the last search found.
func (p *process) openDevices() []uint64 { return slices.Sorted(maps.Keys(p.devices)) }

// again reports whether a program must be read again, given the process's activity now. After the process has run, the
// attempts to find the program's chips start again.
func (p program) again(did proc.Activity) bool {
	return !p.placed || p.chipsUnknown != nil && (p.tries < inspect.ChipTries || p.did != did)
}

func newProcess(m proc.Mapping, l *library) (*process, error) {
	image, _ := proc.OpenImage(m.PID) // first: what is read later need not be of it
	info, err := inspect.Describe(m.PID)
	if err != nil {
		if image != nil {
			image.Close()
		}
		return nil, err
	}
	info.Library, info.BuildID, info.Release, info.Source = m.Path, l.lib.BuildID, l.lib.Release, aggregator.Sampled
	info.NotCovered = strings.Join(l.cover.NotCovered(), ", ")
	info.UnknownMemory = strings.Join(l.lib.UnknownMemory(), ", ")
	mem := memoryOf(m.PID)
	in := inspect.NewOver(mem, l.lib, m).Repeatedly()
	return &process{
		pid: m.PID, image: image, user: proc.User(m.PID), mapping: m, library: l, memory: mem, Inspector: in, chips: inspect.NewChips(in, m.PID), info: info,
		devices: map[uint64]uint64{}, managers: map[uint64]uint64{}, sizes: map[uint64]uint64{}, buffers: map[uint64]*held{}, used: map[uint64]bool{}, programs: map[uint64]program{}, rings: inspect.Rings{}, files: inspect.NewKernelFiles(memory.FilesOf(m.PID)),
	}, nil
}

// ended reports whether the process has ended or called exec. Another process can then have its PID, and the library at the
// same place.
func (p *process) ended() bool {
	if p.image != nil {
		return !p.image.Runs() || !proc.Alive(p.pid)
	}
	_, started, err := proc.Name(p.pid)
	return err == nil && started != p.info.Started || !proc.Alive(p.pid)
}

// close leaves its library and closes its image.
func (p *process) close(of *libraries) {
	of.leave(p.library)
	if p.image != nil {
		p.image.Close()
	}
}

// memoryOf returns a reader of a process's memory. A separate process reads that of other users, and can be abandoned if a
// page never arrives. This process reads its own user's, because Yama may permit only a process's ancestors to read it.
func memoryOf(pid uint32) *memory.Process {
	if proc.User(pid) == uint32(os.Geteuid()) {
		return memory.Direct(pid).Charging()
	}
	return memory.Of(pid).Charging()
}

// readable returns why the process's memory may not be read, or nil.
func (p *process) readable() error {
	err := p.memory.ReadAt(make([]byte, 4), p.mapping.Region.Start)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return unreadable(p.pid, err)
	}
	return nil
}

// CheckReadable returns which setting or missing right forbids reading a process's memory, or nil.
func CheckReadable(pid uint32) error {
	var first proc.Mapping
	err := proc.Pieces(pid, func(m proc.Mapping, _ proc.Permissions) (more bool) { first = m; return false })
	if errors.Is(err, os.ErrPermission) {
		return unreadable(pid, err)
	}
	if first.PID == 0 { // it maps no file, so not the runtime either
		return nil
	}
	err = memoryOf(pid).ReadAt(make([]byte, 4), first.Region.Start)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return unreadable(pid, err)
	}
	return nil
}

const ptraceScope = "/proc/sys/kernel/yama/ptrace_scope"

// PtraceScope returns Yama's kernel.yama.ptrace_scope. Without Yama it is 0: users may read all their own processes.
func PtraceScope() int {
	b, err := os.ReadFile(ptraceScope)
	if err != nil {
		return 0 // no Yama
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return n
}

// MayReadAll reports whether this program may read all users' processes, at any ptrace_scope below 3.
func MayReadAll() bool {
	ok, err := cap.GetProc().GetFlag(cap.Effective, cap.SYS_PTRACE)
	return err == nil && ok
}

// unreadable returns which setting or missing right forbids reading a process's memory. It wraps err.
func unreadable(pid uint32, err error) error {
	if MayReadAll() && PtraceScope() < 3 {
		return fmt.Errorf("its memory may not be read in spite of cap_sys_ptrace: a security module or a namespace forbids it: %w", err)
	}
	if st, e := os.Stat(fmt.Sprintf("/proc/%d", pid)); e == nil {
		if owner := st.Sys().(*syscall.Stat_t).Uid; owner != uint32(os.Geteuid()) {
			return fmt.Errorf("its memory may not be read: it belongs to user %d, or is not dumpable: this needs cap_sys_ptrace: %w", owner, err)
		}
	}
	switch PtraceScope() {
	case 1:
		return fmt.Errorf("its memory may not be read: kernel.yama.ptrace_scope is 1, so a program may only read processes that it started: use 'tt-memtrace -- CMD', or set it to 0: %w", err)
	case 2:
		return fmt.Errorf("its memory may not be read: kernel.yama.ptrace_scope is 2, so this needs cap_sys_ptrace: %w", err)
	case 3:
		return fmt.Errorf("its memory may not be read: kernel.yama.ptrace_scope is 3, so no process may until the host is rebooted: %w", err)
	}
	return fmt.Errorf("its memory may not be read: %w", err)
}

// searches reports whether the next look is a search: its first is, and later ones when the process ran since the last
// search and the budget permits it.
func (p *process) searches(b *budget, now time.Time) bool {
	if !p.shown {
		return true
	}
	rest := p.did.Rests(p.pid)
	return !(rest && p.did == p.searched) && b.permits(p.searchCost, rest, now.Sub(p.lastSearch))
}

// look is one look at a process, and its results.
type look struct {
	p         *process
	finder    *discover.Finder
	libraries *libraries
	search    bool
	// charged is what the budget was charged before it began.
	charged time.Duration
	// thread is the thread that runs it; 0 before and after.
	thread atomic.Int32
	// spent is the CPU time that the thread and the readers had used before it.
	spent time.Duration
	// waited is how long the run saw the thread wait for pages.
	waited time.Duration

	// idle means that the process did nothing since the last look, so nothing was read.
	idle bool
	// at and ended are when it began and ended, in ns of the clock of events.
	at, ended uint64
	// cost is its CPU time. searchCost is that of a search.
	cost       time.Duration
	searchCost time.Duration
	did        proc.Activity // of the process, when the look began
	// still means that the process did nothing during the look.
	still bool
	gone  bool // the process ended, or runs another program
	scan  *inspect.ProcessScan
	err   error
	// notice is a line that the user should know, or "".
	notice string
	// forkDetail says what is unknown about objects copied from the process forkedFrom, or is "".
	forkDetail string
	forkedFrom uint32

	opened     map[uint64]inspect.Device
	capacities map[uint64]aggregator.Capacity
	kernels    map[uint64][]aggregator.Kernel // of new programs, by kernel
	numbers    map[uint64]uint64              // of programs
	// unplaced are programs that have not changed since they were read unplaced. They were not read again.
	unplaced []uint64
	host     uint64 // resident memory on the host, bytes; 0 if unknown
	// rings are the config rings of each device; ringErrors are the errors of devices whose rings could not be read.
	rings      map[uint64][]aggregator.ConfigRing
	ringErrors map[uint64]error
}

// used returns the CPU time that a thread, and the readers that work for the look, have used.
func (l *look) used(thread int) time.Duration {
	used, _ := proc.ThreadTime(thread)
	return used + l.p.memory.Used()
}

// waits reports whether the look waits for a page.
func (l *look) waits() bool {
	thread := int(l.thread.Load())
	if thread == 0 {
		return false // it has not begun, or has ended
	}
	waits, _ := memory.Waits(l.p.user)
	return waits || proc.Uninterruptible(thread)
}

// overdue returns the limit that the look has exceeded, or 0. Call it every lookEvery: each call counts that much waiting.
func (l *look) overdue() time.Duration {
	thread := int(l.thread.Load())
	if thread == 0 {
		return 0
	}
	if l.waits() {
		l.waited += lookEvery
	}
	most := patience
	if !l.p.shown && l.waited < patience {
		most = firstPatience
	}
	if l.waited+l.used(thread)-l.spent < most {
		return 0
	}
	return most
}

// run looks at the process and sets the results.
func (l *look) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := l.p
	l.spent = l.used(unix.Gettid())
	l.thread.Store(int32(unix.Gettid()))
	defer func() {
		l.cost = l.used(unix.Gettid()) - l.spent
		l.thread.Store(0)
	}()
	l.at = proc.Now()
	rests, ok := p.did.Rests(p.pid), true
	if l.did = p.did; !rests {
		l.did, ok = proc.ActivityOf(p.pid)
	}
	if !ok || p.ended() {
		l.gone = true
		return
	}
	if !l.search && p.whole && !p.ringUnread && p.rested && rests {
		l.idle, l.still, l.ended = true, true, l.at
		return
	}
	if l.read(); l.err == nil {
		l.configRings()
	}
	l.host, _ = proc.ResidentMemory(p.pid)
	if p.ended() { // what was read need not be its own
		l.gone = true
		return
	}
	if l.err != nil || l.scan == nil || l.search {
		// The process may have called exec. Then nothing of the old program is found.
		if list, err := l.finder.Known(p.pid); err == nil && !slices.ContainsFunc(list, p.mapping.Alike) {
			l.gone = true
			return
		} else if err == nil {
			p.loads(list, l.finder, l.libraries)
		}
	}
	l.still, l.ended = l.did.Rests(p.pid), proc.Now()
	if l.search {
		l.searchCost = l.used(unix.Gettid()) - l.spent
	}
}

// loads compares what the process has loaded now with before, and sets loadedTwice if that has a second runtime.
func (p *process) loads(list []proc.Mapping, finder *discover.Finder, libraries *libraries) {
	for _, m := range list {
		if slices.ContainsFunc(p.copies, m.Alike) {
			continue
		}
		p.copies = append(p.copies, m)
		library, _, err := libraries.open(finder, memory.FilesOf(p.pid), m)
		alike := false
		if library != nil {
			alike = library == p.library && library.lib.LoadedAlike(p.mapping, m)
			libraries.leave(library)
		}
		p.loadedTwice = p.loadedTwice || library != nil && !alike || err != nil
	}
}

// read reads what the process holds into scan, or sets err. It becomes a search if an allocator is gone.
func (l *look) read() {
	p := l.p
	// known sets the reserved size of a confirmed buffer that has not changed, and reports whether it did.
	known := func(h *aggregator.LiveBuffer) bool {
		old := p.buffers[h.Buffer]
		if old == nil || !old.confirmed {
			return false
		}
		now := *h
		now.PerBank = old.PerBank // the places on its cores, if it has any, were read
		if now != old.LiveBuffer {
			return false
		}
		*h = now
		return h.PerBank != 0
	}
	if !l.search {
		l.scan = &inspect.ProcessScan{}
		if l.err = p.ScanAllocators(l.scan, p.library.layout, p.allocators, known); l.err == nil {
			return
		}
		l.search = true // an allocator is gone: search for what is there now
	}
	programs := map[uint64]bool{}
	l.numbers = map[uint64]uint64{}
	for id, was := range p.programs {
		if number := p.ProgramNumber(id); !was.again(l.did) && number == was.number {
			programs[id] = true
		}
	}
	devices := p.openDevices()
	for id, was := range p.unplaced {
		if was.remains(p.ProgramNumber(id), p.ProgramState(id), devices) {
			programs[id] = true
			l.unplaced = append(l.unplaced, id)
		}
	}
	var fork *inspect.Fork
	if from := proc.ForkedFrom(p.mapping); from != 0 {
		fork = &inspect.Fork{From: from, Unfreed: true, Opened: func() (map[uint64]bool, bool, error) { return p.used, false, nil }}
	}
	l.scan, l.err = p.Scan(p.library.layout, programs, fork, known)
	if l.err == nil && len(programs) > 0 && p.meshesChanged(l.scan) {
		// What known programs had on chips that closed may be gone, and chips may have opened again. Read all programs again.
		l.unplaced = nil
		l.scan, l.err = p.Scan(p.library.layout, nil, fork, known)
	}
	if l.scan != nil && l.scan.Unsearched != nil && len(p.devices) > 0 && (l.err == nil || errors.Is(l.err, memory.ErrSearchTime)) {
		l.err = nil
		l.keep(known)
	}
	if l.err == nil && fork != nil {
		l.forkedFrom = fork.From
		switch left := l.scan.Leftover; {
		case len(l.scan.Unsure) > 0:
			l.forkDetail = fork.Detail()
		case left.Any():
			l.forkDetail = left.Detail(fork.From)
		}
	}
	if l.err == nil {
		l.scan.Scan.TotalsDisagree = p.chips.TotalsDisagree(l.scan)
		l.describe()
	}
}

// keep adds to an incomplete search what was found before and is still there.
func (l *look) keep(known func(*aggregator.LiveBuffer) bool) {
	p, scan := l.p, l.scan
	closed := map[uint64]bool{} // allocators
	for device, allocator := range p.devices {
		if _, found := scan.Devices[device]; found {
			continue
		}
		if p.IsClosed(device) {
			closed[allocator] = true
		} else {
			scan.Devices[device] = allocator
		}
	}
	missing := slices.DeleteFunc(slices.Clone(p.allocators), func(a uint64) bool {
		return closed[a] || slices.Contains(scan.Scan.Allocators, a) || slices.Contains(scan.UnreadAllocators, a)
	})
	if len(missing) > 0 {
		_ = p.ScanAllocators(scan, p.library.layout, missing, known) // this also notes allocators that cannot be read
	}
	for id, was := range p.programs {
		if !slices.Contains(scan.Scan.Programs, id) && was.number == p.ProgramNumber(id) {
			scan.Scan.Programs = append(scan.Scan.Programs, id)
			l.numbers[id] = was.number
		}
	}
}

// configRings reads the kernel-config rings of open devices.
func (l *look) configRings() {
	devices := l.p.devices
	if l.search {
		devices = l.scan.Devices
	}
	l.rings, l.ringErrors = map[uint64][]aggregator.ConfigRing{}, map[uint64]error{}
	for device := range devices {
		if list, err := l.p.ConfigRings(device); err == nil {
			l.rings[device] = list
		} else if !l.p.IsClosed(device) {
			l.ringErrors[device] = err
		}
	}
}

// describe reads the properties of new devices, allocators and programs.
func (l *look) describe() {
	p := l.p
	l.opened, l.capacities = map[uint64]inspect.Device{}, map[uint64]aggregator.Capacity{}
	for _, device := range slices.Concat(slices.Collect(maps.Keys(l.scan.Devices)), l.scan.Leftover.Devices()) {
		d, err := p.chips.Device(device)
		l.opened[device] = d
		if err != nil {
			l.notice = fmt.Sprintf("its memory could not be read, so the chips of its device at %#x are unknown (it may have exited): %v", device, err)
		}
	}
	for _, a := range l.scan.Scan.Allocators {
		if was, known := p.sizes[a]; !slices.Contains(p.allocators, a) || known && p.Resized(a, was) {
			c, err := p.Capacity(a)
			if err != nil {
				l.notice = fmt.Sprintf("the capacity of its memories is unknown: %v", err)
			}
			l.capacities[a] = c
		}
	}
	l.kernels = map[uint64][]aggregator.Kernel{}
	for _, program := range l.scan.Programs {
		l.numbers[program.ID] = p.ProgramNumber(program.ID)
		for _, k := range program.Kernels {
			for _, file := range k.Files {
				if kernel, ok := p.files.Kernel(k.ID, file, true); ok {
					kernel.Cores = k.Cores
					l.kernels[k.ID] = append(l.kernels[k.ID], kernel)
				}
			}
		}
	}
}
