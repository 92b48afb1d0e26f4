package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tt-memtrace/test/rig"
)

// A process that is not there is an error, not something to wait for.
func TestNoSuchProcess(t *testing.T) {
	mayTrace(t)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{fmt.Sprint(gone.Process.Pid), "4194305", "4294967297", "18446744073709551615"} {
		for _, command := range []string{"status", "log", "doctor"} {
			contains(t, run(t, failed, command, "-p", pid).err, "PID "+pid, "no such process")
		}
	}
	contains(t, run(t, failed, "status", "-p", "0").err, "no process")
	// One of several is enough.
	contains(t, run(t, failed, "status", "-p", fmt.Sprint(os.Getpid()), "-p", fmt.Sprint(gone.Process.Pid)).err, "no such process")
}

// A thread's id is not accepted as a process's.
func TestThread(t *testing.T) {
	mayTrace(t)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, th := range threads {
		if th.Name() == fmt.Sprint(os.Getpid()) {
			continue
		}
		for _, command := range []string{"status", "log", "doctor"} {
			contains(t, run(t, failed, command, "-p", th.Name()).err, fmt.Sprintf("a thread of process %d", os.Getpid()))
		}
		return
	}
	t.Skip("this process has one thread only")
}

// links counts what the tool holds of places in the kernel where its programs run.
func links(t *testing.T, s *session) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		to, _ := os.Readlink(filepath.Join(dir, f.Name()))
		if strings.Contains(to, "bpf_link") || strings.Contains(to, "perf_event") {
			n++
		}
	}
	return n
}

// The command waits for a process that does not use the runtime yet, and says so
// once; when it does use it, all that it does is seen.
func TestWaitsForTheRuntime(t *testing.T) {
	w := holder(t)
	pid := fmt.Sprint(w.PID())
	log := begin(t, call{args: []string{"log", "--json", "-p", pid}})
	waiting := "tt-memtrace: process " + pid + " does not use the runtime yet: waiting\n"
	log.err.await(t, waiting)
	quiet := begin(t, call{args: []string{"log", "--json", "-q", "-p", pid}})
	every := begin(t, call{args: []string{"status", "--json", "--every", "50ms", "-q", "-p", pid}})
	every.out.await(t, "\n}\n") // it is attached
	// The quiet log says nothing; it is where the other one is.
	eventually(t, patience, "the quiet log is attached", func() bool { return links(t, quiet) == links(t, log) })

	// The first snapshot has nothing, and is not waited with.
	r := run(t, fine, "status", "--json", "-p", pid)
	if s := one(t, r.out); len(s.Chips) != 0 || len(s.Processes) != 0 || !s.Exact {
		t.Errorf("%+v", s)
	}
	if r.err != "tt-memtrace: process "+pid+" does not use the runtime yet\n" {
		t.Errorf("stderr: %s", r.err)
	}

	send(t, w, "go")
	says(t, w, "holding")
	log.out.await(t, `"event":"alloc"`)
	if !every.out.within(patience, func(out string) bool {
		list := snapshots(t, out)
		s := list[len(list)-1]
		return len(s.Processes) == 1 && s.Processes[0].PID == w.PID() && s.Exact &&
			len(s.Chips) == 1 && s.Chips[0].Memory["dram"].Requested == 1<<20
	}) {
		t.Errorf("no snapshot with what it holds:\n%s", every.out)
	}
	for _, step := range []string{"freed", "closed"} {
		send(t, w, "go")
		says(t, w, step)
	}
	send(t, w, "go")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}

	// All end with it.
	r = log.ends(fine)
	list := entries(t, r.out)
	if b := addUp(t, list); b.allocs != 1 || b.frees != 1 || list[0].Size != 1<<20 || list[0].Memory != "dram" || onChips(list[0].Chips) != "[0]" {
		t.Errorf("%+v", list)
	}
	if r.err != waiting {
		t.Errorf("stderr: %s", r.err)
	}
	if q := quiet.ends(fine); len(entries(t, q.out)) != len(list) || q.err != "" {
		t.Errorf("with -q it is %v", q)
	}
	if r := every.ends(fine); r.err != "" {
		t.Errorf("stderr: %s", r.err)
	}
}

// What a process held before it was attached to is known, in every form.
func TestLateAttach(t *testing.T) {
	w := holder(t)
	send(t, w, "go")
	says(t, w, "holding")
	pid := fmt.Sprint(w.PID())
	list := snapshots(t, run(t, fine, "status", "--json", "-p", pid).out)
	if len(list) != 1 || !list[0].Exact || len(list[0].Processes) != 1 {
		t.Fatalf("%+v", list)
	}
	p := list[0].Processes[0]
	if p.Late || p.Found != 1 || p.Buffers != 1 || p.Allocs != 0 || p.Chips[0].Memory["dram"].Requested != 1<<20 {
		t.Errorf("%+v", p)
	}
	if out := run(t, fine, "status", "-p", pid).out; !strings.Contains(out, "1.01M") {
		t.Errorf("it shows\n%s", out)
	}
	if r := run(t, fine, "__complete", "status", "-p", ""); !strings.Contains(r.out, pid+"\tpython") {
		t.Errorf("it is not offered for -p: %s", r.out)
	}
}

// Without rights, another user's process is refused, and the error says why.
func TestOtherUsersProcess(t *testing.T) {
	program := ofNobody(t)
	pid := fmt.Sprint(os.Getpid())
	for _, command := range []string{"status", "log", "doctor"} {
		r := begin(t, call{program: program, args: []string{command, "-p", pid}, nobody: true}).ends(notPermitted)
		contains(t, r.err, "not permitted", "cap_sys_ptrace", "sudo setcap ")
		if command == "doctor" {
			contains(t, r.err, "belongs to user 0")
		}
	}
}

// A file that is not the runtime's library is refused, by name and reason.
func TestNotTheLibrary(t *testing.T) {
	r := runtime(t)
	dir := t.TempDir()
	notELF := filepath.Join(dir, "libtt_metal.so")
	if err := os.WriteFile(notELF, []byte("nothing of the kind"), 0o644); err != nil {
		t.Fatal(err)
	}
	user := filepath.Join(filepath.Dir(r.Library), "_ttnncpp.so")
	if _, err := os.Stat(user); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		code int
		says string
	}{
		{"/bin/ls", notSupported, "it is not libtt_metal.so, or lacks its symbols: it defines no function of tt::tt_metal"},
		{tool, notSupported, "defines no function of tt::tt_metal"},
		{user, notSupported, "lacks the required buffer allocated (no symbol _ZN2tt8tt_metal12GraphTracker14track_allocate"},
		{notELF, notSupported, "bad magic number"},
		{dir, notSupported, "not a regular file"},
		{filepath.Join(dir, "absent.so"), failed, "no such file"},
	} {
		for _, args := range [][]string{{"doctor"}, {"status"}, {"log", "-p", fmt.Sprint(os.Getpid())}} {
			r := run(t, c.code, append(args, "--lib", c.path)...)
			contains(t, r.out+r.err, c.path, c.says)
			if c.code == notSupported {
				contains(t, r.err, "library not supported")
			}
		}
	}
}

// The runtime's code under another name is traced with --lib.
func TestLibraryOfAnotherName(t *testing.T) {
	mayTrace(t)
	r := runtime(t)
	copied := filepath.Join(t.TempDir(), "libmodel.so.1")
	copyFile(t, r.Library, copied)
	one(t, begin(t, call{args: []string{"status", "--json", "--lib", copied}}).endsAmidOthers().out)
	contains(t, run(t, fine, "doctor", "--lib", copied).out, "This library can be traced")
}

// The doctor finds every probe point in the real library, and how the layout was proved.
func TestDoctor(t *testing.T) {
	r := runtime(t)
	d := run(t, fine, "doctor", "--lib", r.Library)
	for _, point := range []string{"bank space taken", "buffer allocated", "buffer freed", "all buffers freed", "allocator destroyed", "device opened", "device closed"} {
		contains(t, d.out, "✓  "+point)
	}
	contains(t, d.out, r.Library, "build-id  ", "release   "+rig.DefaultRelease, "Layout of a buffer", "decoded",
		"✓  _ZNK2tt8tt_metal6Device2idEv", "This library can be traced.")
	for _, line := range lines(d.out) {
		if strings.Contains(line, "✗") && !strings.Contains(line, "degrades") {
			t.Errorf("%s", line)
		}
	}
	if d.err != "" {
		t.Errorf("stderr: %s", d.err)
	}

	w := holder(t)
	pid := fmt.Sprint(w.PID())
	contains(t, run(t, fine, "doctor", "-p", pid).out, "Host", "✓  kernel", "✓  cap_bpf", "does not map the runtime yet")
	send(t, w, "go")
	says(t, w, "holding")
	for _, args := range [][]string{{"doctor", "-p", pid}, {"doctor"}} {
		d = begin(t, call{args: args}).end()
		if d.code != fine && (len(args) > 1 || d.code != notSupported) { // other processes of the host may map anything
			t.Errorf("%v: %v", args, d)
		}
		contains(t, d.out, "Host", "✓  multi-uprobes", "✓  cap_dac_read_search", "processes", pid, "This library can be traced.")
	}

	// A file that can be read takes no rights.
	program := ofNobody(t)
	library := filepath.Join(filepath.Dir(program), "libtt_metal.so")
	copyFile(t, r.Library, library)
	contains(t, begin(t, call{program: program, args: []string{"doctor", "--lib", library}, nobody: true}).ends(fine).out, "This library can be traced.")
}
