package tracer

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"tt-memtrace/internal/watch"
)

// Check is one property of the host that tracing depends on.
type Check struct {
	Name string
	OK   bool
	// Unknown: the check could not be made; OK is false.
	Unknown bool
	// Detail is what was found, or what to do.
	Detail string
}

// ErrKernel means that the kernel lacks something that probes need.
var ErrKernel = errors.New("this kernel does not support the probes")

// kernelFeature is something that probes need from the kernel; err is nil if it is there.
type kernelFeature struct {
	name string
	err  error
	// remedy says which kernel has it.
	remedy string
}

func kernelFeatures() []kernelFeature {
	_, noBTF := os.Stat("/sys/kernel/btf/vmlinux")
	if errors.Is(noBTF, os.ErrNotExist) {
		noBTF = ebpf.ErrNotSupported
	}
	return []kernelFeature{
		{"attach cookies", features.HaveProgramHelper(ebpf.Kprobe, asm.FnGetAttachCookie), "Linux 5.15 or later is needed"},
		{"ring buffer", features.HaveMapType(ebpf.RingBuf), "Linux 5.8 or later is needed"},
		{"task storage", features.HaveMapType(ebpf.TaskStorage), "Linux 5.11 or later is needed"},
		{"BTF", noBTF, "a kernel with CONFIG_DEBUG_INFO_BTF is needed"},
	}
}

// kernelError names a feature that the kernel lacks, or is nil. A feature that may not be checked counts as
// there.
func kernelError() error { return firstLacking(kernelFeatures()) }

// Possible returns why probes are not possible on this host for this user, or nil.
func Possible() error {
	for _, check := range []func() error{CheckRights, checkPIDNamespace, checkTimeNamespace, kernelError} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func firstLacking(list []kernelFeature) error {
	for _, f := range list {
		if errors.Is(f.err, ebpf.ErrNotSupported) {
			return fmt.Errorf("%w: it lacks %s: %s; --sample works without probes", ErrKernel, f.name, f.remedy)
		}
	}
	return nil
}

const notPermitted = "unknown: not permitted to check"

// CheckKernel lists what the kernel can do.
func CheckKernel() []Check {
	var u unix.Utsname
	release := "unknown"
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	checks := []Check{{Name: "kernel", OK: true, Detail: release}}
	feature := func(name string, err error, without string) {
		c := Check{Name: name, OK: err == nil}
		switch {
		case err == nil:
			c.Detail = "yes"
		case errors.Is(err, ebpf.ErrNotSupported):
			c.Detail = "no: " + without
		case errors.Is(err, unix.EPERM):
			c.Unknown, c.Detail = true, notPermitted
		default:
			c.Unknown, c.Detail = true, "unknown: "+err.Error()
		}
		checks = append(checks, c)
	}
	// These are not needed, but better.
	lacks := kernelLacks()
	better := func(name string, lacks bool, without string) {
		c := Check{Name: name, OK: true, Detail: "yes"}
		if lacks {
			c.Detail = "no: " + without
		}
		checks = append(checks, c)
	}
	better("multi-uprobes", lacks.MultiUprobes, withoutMulti+" (Linux 6.6 has them)")
	if !lacks.MultiUprobes {
		better("multi-uprobes of a process", lacks.PIDFilter, withoutPIDFilter+" (Linux 6.10 has them)")
	}
	for _, f := range kernelFeatures() {
		feature(f.name, f.err, f.remedy)
	}
	namespace := Check{Name: "PID namespace", OK: true, Detail: "the host's"}
	if err := checkPIDNamespace(); err != nil {
		namespace.OK, namespace.Detail = false, "not the host's: start the container with --pid=host, or hostPID: true in Kubernetes"
	}
	clock := Check{Name: "time namespace", OK: true, Detail: "the host's clock"}
	if err := checkTimeNamespace(); err != nil {
		clock.OK, clock.Detail = false, "not the host's clock, which dates events: start it in the host's time namespace"
	}
	watching := Check{Name: "watching new processes", OK: true, Detail: "yes"}
	w, err := watch.Mappings(false, nil)
	switch {
	case errors.Is(err, unix.EPERM):
		watching.OK, watching.Unknown, watching.Detail = false, true, notPermitted
	case err != nil:
		watching.OK, watching.Detail = false, err.Error()
	default:
		if watch.ByPerf(w) {
			watching.Detail = "by perf's records of all mappings: this kernel allows no BPF programs at its functions"
		}
		w.Close()
	}
	return append(checks, describeUserNamespace(userNamespace(), checkUserNamespace()), namespace, clock, watching)
}
