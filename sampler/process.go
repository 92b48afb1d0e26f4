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
	"tt-memtrace/tracer/discover"
	"tt-memtrace/tracer/inspect"
	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/proc"
)

// process is a process that is sampled. While it is busy, its look has all but what is
// said to be the run's.
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

	// The run's: a look is under way, and nothing waits for it any more.
	busy    bool
	look    *look
	hangs   bool
	noticed bool
	// unreadLooks is how many looks in a row could not read all programs.
	unreadLooks int
	// unread: it is said that its memory could not be read.
	unread bool
	// hungNoticed: it is said that its memory does not answer.
	hungNoticed bool

	// What it holds, as of the last look that was whole.
	devices    map[uint64]uint64 // open ones, with their allocators
	managers   map[uint64]uint64 // sub-device managers, by mesh
	allocators []uint64
	buffers    map[uint64]*held
	// round counts the looks whose buffers were compared.
	round    uint64
	programs map[uint64]program
	// unplaced are programs that were not placed when they were read.
	unplaced map[uint64]unplaced
	// chipsUnknown is why on which chips one of them is was not to be had, as it was said, or empty.
	chipsUnknown string
	files        *inspect.KernelFiles
	rings        inspect.Rings
	// ringUnread: one of them could not be read last, so it is read again though nothing happened.
	ringUnread bool

	// used are devices on which new buffers were found: they are no copies of another process's.
	used map[uint64]bool
	// unsure: whether some of its devices are such copies is not known.
	unsure bool

	// did is what the process had done when the last look began, and searched when the last search
	// did; at rest it is the same at the next look.
	did, searched proc.Activity
	// rested: the process did nothing during the last look.
	rested bool
	// whole: the last look left nothing out. searchCost is what the last search took, 0 after the first, which reads
	// what no other has to, and lastSearch when it began.
	whole      bool
	searchCost time.Duration
	lastSearch time.Time
	// calls counts programs that were read, each of which replaces what it had.
	calls uint32
	// copies are what it has loaded that could be the runtime; twice: two of them are, of which one is read, and
	// twiceSaid that this was said.
	copies           []proc.Mapping
	twice, twiceSaid bool
	// shown: its first look was delivered. unsearched is why something may be missing, failed
	// how many looks in a row gave nothing.
	shown      bool
	unsearched string
	failed     int
}

// held is a buffer that was found in a round.
type held struct {
	aggregator.LiveBuffer
	round uint64
	// twice: two looks found it like that, each by itself. What it costs a bank can be another one's, of the moment at
	// which the list of blocks was read.
	twice bool
}

// program is one that was read: another one at its address has another number.
type program struct {
	number uint64
	placed bool
	// chipsUnknown is why on which chips of a mesh it is was not to be had, in so many tries since
	// the process last did something, by when it had done that.
	chipsUnknown error
	tries        int
	did          proc.Activity
}

// unplaced is a program that was not placed, or on which device is not known. It is read again once something of it
// changed, or other devices are open.
type unplaced struct {
	number, state uint64
	devices       []uint64
}

// remains says whether an unplaced program is as it was, with so many devices open.
func (u unplaced) remains(number, state uint64, devices []uint64) bool {
	return u.state != 0 && u.state == state && u.number == number && slices.Equal(u.devices, devices)
}

// openDevices are those of the last search.
func (p *process) openDevices() []uint64 { return slices.Sorted(maps.Keys(p.devices)) }

// again says whether the program of a process that did so much must be read again. When it has run since, the tries for its
// chips begin anew.
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
	mem := memoryOf(m.PID)
	in := inspect.NewOver(mem, l.lib, m).Repeatedly()
	return &process{
		pid: m.PID, image: image, user: proc.User(m.PID), mapping: m, library: l, memory: mem, Inspector: in, chips: inspect.NewChips(in, m.PID), info: info,
		devices: map[uint64]uint64{}, buffers: map[uint64]*held{}, used: map[uint64]bool{}, programs: map[uint64]program{}, rings: inspect.Rings{}, files: inspect.NewKernelFiles(memory.FilesOf(m.PID)),
	}, nil
}

// ended says whether the process has ended or runs another program. Another process can have its PID then, and the library at
// the same place.
func (p *process) ended() bool {
	if p.image != nil {
		return !p.image.Runs() || !proc.Alive(p.pid)
	}
	_, started, err := proc.Name(p.pid)
	return err == nil && started != p.info.Started || !proc.Alive(p.pid)
}

// close frees what is kept open for it.
func (p *process) close(of *libraries) {
	of.leave(p.library)
	if p.image != nil {
		p.image.Close()
	}
}

// memoryOf is a process's memory. That of other users is read in a process apart, which can
// be abandoned when a page of theirs never comes; for one's own, Yama may permit no other process to read.
func memoryOf(pid uint32) *memory.Process {
	if proc.User(pid) == uint32(os.Geteuid()) {
		return memory.Direct(pid).Charging()
	}
	return memory.Of(pid).Charging()
}

// readable says why a process's memory may not be read, or nil.
func (p *process) readable() error {
	err := p.memory.ReadAt(make([]byte, 4), p.mapping.Region.Start)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return unreadable(p.pid, err)
	}
	return nil
}

// CheckReadable says which setting forbids to read a process, or nil.
func CheckReadable(pid uint32) error {
	var first proc.Mapping
	err := proc.Pieces(pid, func(m proc.Mapping, _ proc.Permissions) (more bool) { first = m; return false })
	if errors.Is(err, os.ErrPermission) {
		return unreadable(pid, err)
	}
	if first.PID == 0 { // it maps no file
		return nil
	}
	err = memoryOf(pid).ReadAt(make([]byte, 4), first.Region.Start)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return unreadable(pid, err)
	}
	return nil
}

const ptraceScope = "/proc/sys/kernel/yama/ptrace_scope"

// PtraceScope is what of Yama's settings is in force: 0 where a user may read all of
// his processes.
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

// MayReadAll says whether this program may read other users' processes, whatever Yama's
// settings, short of 3.
func MayReadAll() bool {
	ok, err := cap.GetProc().GetFlag(cap.Effective, cap.SYS_PTRACE)
	return err == nil && ok
}

// unreadable says which setting or missing right forbids to read a process.
func unreadable(pid uint32, err error) error {
	if MayReadAll() && PtraceScope() < 3 {
		return fmt.Errorf("its memory may not be read in spite of cap_sys_ptrace: a security module or a namespace denies it: %w", err)
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

// searches says whether its next look is a search for devices, allocators and
// programs, and not only of the buffers that known allocators have.
func (p *process) searches(b *budget, now time.Time) bool {
	if !p.shown {
		return true
	}
	rest := p.did.Rests(p.pid)
	return !(rest && p.did == p.searched) && b.permits(p.searchCost, rest, now.Sub(p.lastSearch))
}

// look is one look at a process.
type look struct {
	p         *process
	finder    *discover.Finder
	libraries *libraries
	search    bool
	// charged is what was charged for it before it began.
	charged time.Duration
	// thread is the thread that looks, 0 before it began, and spent what that and the readers had
	// used of processors by then.
	thread atomic.Int32
	spent  time.Duration
	// waited is for how long the run saw the thread wait for pages.
	waited time.Duration

	// idle: the process did nothing since the last look.
	idle bool
	// at is when it began, by the clock of events, and cost what it took of a processor.
	at, ended  uint64
	cost       time.Duration
	searchCost time.Duration
	did        proc.Activity
	// still: the process did nothing meanwhile.
	still  bool
	gone   bool
	scan   *inspect.ProcessScan
	err    error
	notice string
	// forkDetail says what is not known of copies of what forkedFrom has, or is empty.
	forkDetail string
	forkedFrom uint32

	opened     map[uint64]inspect.Device
	capacities map[uint64]aggregator.Capacity
	kernels    map[uint64][]aggregator.Kernel // of new programs, by kernel
	numbers    map[uint64]uint64              // of programs
	// unplaced are programs that remained so, and were not read.
	unplaced []uint64
	host     uint64 // resident memory on the host, bytes; 0 where unknown
	// rings are those of each device, and ringErrors why those of the others could not be read.
	rings      map[uint64][]aggregator.ConfigRing
	ringErrors map[uint64]error
}

// used is what a thread, and others for it, used of processors.
func (l *look) used(thread int) time.Duration {
	used, _ := proc.ThreadTime(thread)
	return used + l.p.memory.Used()
}

// waits says whether the look waits for a page.
func (l *look) waits() bool {
	thread := int(l.thread.Load())
	if thread == 0 {
		return false // not yet, or not any more
	}
	waits, _ := memory.Waits(l.p.user)
	return waits || proc.Uninterruptible(thread)
}

// overdue says, asked once in lookEvery, whether the look takes too long, and then how long it might take at most.
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

// run looks at the process.
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

// loads takes in what the process has loaded by now.
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
		p.twice = p.twice || library != nil && !alike || err != nil
	}
}

func (l *look) read() {
	p := l.p
	known := func(h *aggregator.LiveBuffer) bool {
		old := p.buffers[h.Buffer]
		if old == nil || !old.twice {
			return false
		}
		now := *h
		now.PerBank = old.PerBank
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
		l.search = true // an allocator is gone
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
	if l.err == nil && len(programs) > 0 && slices.ContainsFunc(p.openDevices(), func(d uint64) bool { return p.hasClosed(d, l.scan) }) {
		// What programs had there may be gone with its chips.
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
		l.describe()
	}
}

// keep adds what was found before, and not in a search that ended early: it need not be gone.
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
		_ = p.ScanAllocators(scan, p.library.layout, missing, known) // one that cannot be read is noted there
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
		if !slices.Contains(p.allocators, a) {
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
