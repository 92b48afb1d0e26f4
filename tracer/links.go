package tracer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
)

// kernelLacks finds out what the kernel lacks. If that is not permitted, it goes by the version.
var kernelLacks = sync.OnceValue(func() Lacks {
	err := features.HaveBPFLinkUprobeMulti()
	if errors.Is(err, ebpf.ErrNotSupported) || err != nil && !isLinux(6, 6) {
		return Lacks{MultiUprobes: true}
	}
	return Lacks{PIDFilter: !pidFilterWorks()}
})

// isLinux reports whether the kernel has this version or a later one, by uname. The exact version code is in the
// vDSO, in this program's own memory, which a program with only some capabilities may not read.
func isLinux(major, minor int) bool {
	var u unix.Utsname
	var here [2]int
	if unix.Uname(&u) != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &here[0], &here[1])
	return err == nil && slices.Compare(here[:], []int{major, minor}) >= 0
}

// pidFilterWorks tests a change that came with the fixed filter: an impossible PID fails with EINVAL instead of "not
// found".
func pidFilterWorks() bool {
	err := attachToNoPID()
	switch {
	case errors.Is(err, unix.EINVAL):
		return true
	case errors.Is(err, os.ErrNotExist):
		return false
	}
	return isLinux(6, 10)
}

// attachToNoPID tries to attach to an impossible PID and returns the error.
func attachToNoPID() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	ex, err := link.OpenExecutable("/proc/self/exe")
	if err != nil {
		return err
	}
	l, err := ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{Addresses: []uint64{1}, PID: 1<<32 - 1})
	if err == nil {
		l.Close()
	}
	return err
}

// uprobes attaches BPF programs to files.
type uprobes struct {
	*env
	releasing sync.WaitGroup
	closing   chan struct{} // a semaphore: one element for each link that is being closed
}

// noticeMissingFeatures tells the user once what the missing features mean.
func (up *uprobes) noticeMissingFeatures() {
	switch {
	case up.lacks.MultiUprobes:
		up.opts.Notice("this kernel has no multi-uprobes (Linux 6.6 has them): " + withoutMulti)
	case up.lacks.PIDFilter && len(up.opts.PIDs) > 0:
		up.opts.Notice("this kernel's multi-uprobes see only one thread of a process (Linux 6.10 fixed that): " + withoutPIDFilter)
	}
}

const (
	withoutMulti     = "probes are attached one by one, and detaching them takes seconds"
	withoutPIDFilter = "with -p, other processes that use the library are probed too, and skipped"
)

// usePerfEvents changes BPF programs for multi-uprobes into ones for perf events.
func usePerfEvents(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		if p.AttachType == ebpf.AttachTraceUprobeMulti {
			p.AttachType = ebpf.AttachNone
		}
	}
}

// atPoint is the BPF program that runs at all points of a library, so that they share one link.
const atPoint = "at_point"

// pointPrograms are the BPF programs of all points. The index is the number by which atPoint calls them; atPoint has
// the first ones inlined.
var pointPrograms = func() []string {
	names := []string{
		bpf.MemtraceTtOftenTT_OFTEN_ALLOCATED:   bpf.MemtraceProgBufferAllocated,
		bpf.MemtraceTtOftenTT_OFTEN_FREED:       bpf.MemtraceProgBufferFreed,
		bpf.MemtraceTtOftenTT_OFTEN_FREED_FIRST: bpf.MemtraceProgBufferFreedFirst,
		bpf.MemtraceTtOftenTT_OFTEN_LAUNCHED:    bpf.MemtraceProgLaunched,
	}
	for _, p := range slices.Concat(metal.Points, metal.FailurePoints) {
		if !slices.Contains(names, p.BPFProgram) {
			names = append(names, p.BPFProgram)
		}
	}
	return names
}()

// cookieArguments is the bit of a cookie from which on it has the arguments of a message.
const cookieArguments = 16

// cookie encodes for the BPF programs where a probe is: the library, for atPoint also which point's program to run and,
// where the runtime throws, which arguments its message has.
func cookie(library uint32, p metal.Probe) uint64 {
	return uint64(p.Arguments)<<cookieArguments | uint64(slices.Index(pointPrograms, p.Point.BPFProgram))*maxLibraries | uint64(library)
}

// uprobes attaches the BPF programs of probes to a file, in this order. pid 0 means all processes. If one fails, none
// stays attached.
func (up *uprobes) uprobes(ex *link.Executable, probes []metal.Probe, library, pid uint32) ([]link.Link, error) {
	if up.lacks.MultiUprobes {
		return up.perfEvents(ex, probes, library, pid)
	}
	o := link.UprobeMultiOptions{PID: pid}
	for _, p := range probes {
		o.Addresses, o.Cookies = append(o.Addresses, p.Offset), append(o.Cookies, cookie(library, p))
	}
	l, err := ex.UprobeMulti(nil, up.bpfPrograms[atPoint], &o)
	if err != nil {
		return nil, err
	}
	return []link.Link{l}, nil
}

// perfEvents does what uprobes does, on a kernel without multi-uprobes.
func (up *uprobes) perfEvents(ex *link.Executable, probes []metal.Probe, library, pid uint32) (links []link.Link, err error) {
	for _, p := range probes {
		name := p.Point.BPFProgram
		l, err := ex.Uprobe("", up.bpfPrograms[name], &link.UprobeOptions{Address: p.Offset, Cookie: cookie(library, p), PID: int(pid)})
		if err != nil {
			up.release(links)
			return nil, fmt.Errorf("%s at %#x: %w", name, p.Offset, err)
		}
		links = append(links, l)
	}
	return links, nil
}

// descriptors returns how many file descriptors it takes to attach that many probes.
func (up *uprobes) descriptors(places int) int {
	if up.lacks.MultiUprobes {
		return 2 * places // a perf event and a link each
	}
	return 1
}

// release detaches links in the background: one link takes up to a tenth of a second, and the kernel removes
// perf events one by one, however many threads wait. Close waits for all.
func (up *uprobes) release(links []link.Link) {
	for _, l := range links {
		up.releasing.Go(func() {
			up.closing <- struct{}{}
			l.Close()
			<-up.closing
		})
	}
}

// maxClosing bounds the links that are closed at the same time: each takes a thread.
const maxClosing = 64
