package tracer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf/features"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tt-memtrace/test/fixture"
)

const (
	// lacksEnv has the tracers of tests do without these, separated by spaces.
	lacksEnv = "TT_MEMTRACE_TEST_LACKS"

	noMultiUprobes = "multi-uprobes"
	noPIDFilter    = "pid-filter"
)

func lacks(names string) (l Lacks) {
	for _, name := range strings.Fields(names) {
		switch name {
		case noMultiUprobes:
			l.MultiUprobes = true
		case noPIDFilter:
			l.PIDFilter = true
		}
	}
	return l
}

// lacking is what the tracer of a test does without.
func lacking(t *testing.T) Lacks {
	t.Helper()
	fixture.Ready(t)
	return lacks(os.Getenv(lacksEnv))
}

// What was found out of the kernel is what its version has.
func TestKernelFeatures(t *testing.T) {
	needRights(t)
	v, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	got := kernelLacks()
	switch {
	case v < 6<<16|6<<8:
		if got != (Lacks{MultiUprobes: true}) {
			t.Errorf("%+v", got)
		}
	case v >= 6<<16|10<<8:
		if got != (Lacks{}) {
			t.Errorf("%+v", got)
		}
	case got.MultiUprobes: // the filter was fixed in some of these
		t.Errorf("%+v", got)
	}
}

// A notice names what the kernel lacks, where it matters.
func TestNoticeOfMissingFeatures(t *testing.T) {
	needRights(t)
	self := []uint32{uint32(os.Getpid())}
	for _, test := range []struct {
		o    Options
		says string
	}{
		{Options{Lacks: Lacks{MultiUprobes: true}}, "no multi-uprobes"},
		{Options{Lacks: Lacks{MultiUprobes: true, PIDFilter: true}, PIDs: self}, "no multi-uprobes"},
		{Options{Lacks: Lacks{PIDFilter: true}, PIDs: self}, "with -p, other processes"},
		{Options{Lacks: Lacks{PIDFilter: true}}, ""},
		{Options{}, ""},
	} {
		if kernelLacks().MultiUprobes {
			test.says = "no multi-uprobes"
		} else if kernelLacks().PIDFilter && test.o.PIDs == nil {
			continue
		}
		var said []string
		test.o.Notice = func(s string) { said = append(said, s) }
		tr, err := New(test.o)
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		if all := strings.Join(said, "\n"); len(said) > 1 || test.says == "" && all != "" || !strings.Contains(all, test.says) {
			t.Errorf("%+v: %q does not say %q", test.o.Lacks, said, test.says)
		}
	}
}

// This kernel in the place of older ones: tests of everything that attaches,
// and with filtered events of all else that is about processes.
func TestOlderKernels(t *testing.T) {
	if os.Getenv(lacksEnv) != "" {
		t.Skip("it is an older kernel already")
	}
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	needRights(t)
	if os.Getenv(fixture.PrebuiltEnv) == "" {
		t.Setenv(fixture.PrebuiltEnv, t.TempDir())
	}
	for _, test := range []struct{ without, tests string }{
		{noPIDFilter, "WhatProcessesDo|AttachedLate|TwoBuildsAtOnce|ForkWithoutExec|ExecDropsTheAccounts|" +
			"OtherProcessesMakeNoEvents|RunEndsWithItsLastProcess|Detach|KilledTracerLeavesNothing"},
		// It takes seconds to take perf events out, one tracer after the other: make test-kernels has more.
		{noMultiUprobes, "AttachedLate|FollowTracesChildrenOnly|Detach|KernelsOfAProcess"},
	} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run", "^Test("+test.tests+")$")
		cmd.Env = append(os.Environ(), lacksEnv+"="+test.without)
		out, err := cmd.CombinedOutput()
		if passed, want := strings.Count(string(out), "\n--- PASS"), strings.Count(test.tests, "|")+1; err != nil || passed != want {
			t.Errorf("without %s %d of %d passed: %v\n%s", test.without, passed, want, err, out)
		}
	}
}

// What Rights lists is all that it takes, for any user; without one of them the
// refusal names it.
func TestCapabilitiesSuffice(t *testing.T) {
	fixture.LibraryOf(t, own)
	if lacking(t) != (Lacks{}) {
		t.Skip("it is about the rights on this kernel as it is")
	}
	needRights(t)
	const nobody = 65534
	as := func(names []string) *syscall.SysProcAttr {
		how := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		for _, name := range names {
			c, err := cap.FromName(name)
			if err != nil {
				t.Fatal(err)
			}
			how.AmbientCaps = append(how.AmbientCaps, uintptr(c))
		}
		return how
	}
	// What this user lacks depends on the kernel.
	cmd := helper("rights")
	cmd.SysProcAttr = as(nil)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(out))
	t.Logf("the rights are %q", names)
	if len(names) < 4 {
		t.Fatalf("the rights are %q", names)
	}
	for i, name := range names {
		if (name == "cap_bpf" || name == "cap_perfmon") && slices.Contains(names, "cap_sys_admin") {
			continue // which contains it
		}
		cmd := helper("attach", fmt.Sprint(os.Getpid()))
		cmd.SysProcAttr = as(slices.Delete(slices.Clone(names), i, i+1))
		cmd.Stderr = nil
		var failed *exec.ExitError
		if _, err := cmd.Output(); !errors.As(err, &failed) || !strings.Contains(string(failed.Stderr), "missing "+name+"\n") {
			t.Errorf("without %s: %v", name, err)
		}
	}
	attachAndKill(t, as(names))
}

// helpRights names the rights that it takes.
func helpRights([]string) error {
	for _, r := range Rights() {
		fmt.Println(r.Capability)
	}
	return nil
}
