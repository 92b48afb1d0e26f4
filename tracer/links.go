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
)

// Lacks names what newer kernels have for probes, and this one may not.
type Lacks struct {
	// MultiUprobes, from Linux 6.6: one link for all places of a program. Without
	// them each place has a perf event of its own.
	MultiUprobes bool
	// PIDFilter, from Linux 6.10 and in later versions of 6.6 and 6.9: multi-uprobes
	// of a process are those of all its threads. Without it they are in all
	// processes, and the programs pass over those that are not traced.
	PIDFilter bool
}

// kernelLacks finds out what this kernel lacks. Where that is not permitted,
// its version tells.
var hostKernelLacks = sync.OnceValue(func() Lacks {
	err := features.HaveBPFLinkUprobeMulti()
	if errors.Is(err, ebpf.ErrNotSupported) || err != nil && !isLinux(6, 6) {
		return Lacks{MultiUprobes: true}
	}
	return Lacks{PIDFilter: !pidFilterWorks()}
})

// isLinux says whether the kernel is of this version or later.
func isLinux(major, minor uint32) bool {
	v, err := features.LinuxVersionCode()
	return err == nil && v >= major<<16|minor<<8
}

// pidFilterWorks tries what came with the right filter: a PID that cannot be
// one is an invalid argument, and not a process that was not found.
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

// attachToNoPID attaches nothing: the error says why.
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

// perPID says whether each traced process gets probes of its own.
func (t *Tracer) perPID() bool {
	return len(t.opts.PIDs) > 0 && (t.lacks.MultiUprobes || !t.lacks.PIDFilter)
}

// noticeMissingFeatures says once what that means for the user.
func (t *Tracer) noticeMissingFeatures() {
	switch {
	case t.lacks.MultiUprobes:
		t.opts.Notice("this host kernel has no multi-uprobes, which came with Linux 6.6: " + withoutMulti)
	case t.lacks.PIDFilter && len(t.opts.PIDs) > 0:
		t.opts.Notice("this host kernel's multi-uprobes see one thread of a process only, which Linux 6.10 fixed: " + withoutPIDFilter)
	}
}

const (
	withoutMulti     = "probes are attached one by one, and it takes seconds to detach them"
	withoutPIDFilter = "with -p, other processes of the same library are probed too and skipped"
)

// usePerfEvents makes programs for perf events of what is made for multi-uprobes.
func usePerfEvents(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		if p.AttachType == ebpf.AttachTraceUprobeMulti {
			p.AttachType = ebpf.AttachNone
		}
	}
}

// uprobes attaches a program to places of a file, given by their offsets in it.
// pid 0 is all processes. Where one fails, there is none.
func (t *Tracer) uprobes(ex *link.Executable, p *ebpf.Program, offsets []uint64, cookie uint64, pid uint32) ([]link.Link, error) {
	if !t.lacks.MultiUprobes {
		l, err := ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{
			Addresses: offsets, Cookies: slices.Repeat([]uint64{cookie}, len(offsets)), PID: pid,
		})
		if err != nil {
			return nil, err
		}
		return []link.Link{l}, nil
	}
	var links []link.Link
	for _, o := range offsets {
		l, err := ex.Uprobe("", p, &link.UprobeOptions{Address: o, Cookie: cookie, PID: int(pid)})
		if err != nil {
			t.release(links)
			return nil, fmt.Errorf("at %#x: %w", o, err)
		}
		links = append(links, l)
	}
	return links, nil
}

// release detaches beside whatever else is done: a link alone takes up to a
// tenth of a second. Multi-uprobes go at once; perf events the kernel takes out
// one after the other, whoever waits. Close waits for all.
func (t *Tracer) release(links []link.Link) {
	for _, l := range links {
		t.releasing.Go(func() {
			t.closing <- struct{}{}
			l.Close()
			<-t.closing
		})
	}
}

// maxClosing is how many links are closed at once: each takes a thread.
const maxClosing = 64
