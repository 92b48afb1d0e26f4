package tracer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// inRoot makes a root of its own, on a file system that only its mount namespace
// has, with a copy of a driver and a library, and runs the driver there in a PID
// namespace. %[1]s is a folder, %[2]s enters the root.
const inRoot = `#!/bin/sh
exec unshare --mount -- sh -c '
set -e
cd %[1]s
mount -t tmpfs none root
cd root
mkdir usr proc opt old
for d in bin sbin lib lib32 lib64 libx32; do
	if [ -L /$d ]; then cp -P /$d $d; elif [ -d /$d ]; then mkdir $d; mount --rbind /$d $d; fi
done
mount --rbind /usr usr
cp ../driver ../libtt_metal.so opt
exec unshare --pid --fork --kill-child -- sh -c "
set -e
mount -t proc proc proc
%[2]s"
'
`

// startInRoot starts a driver in such a root.
func startInRoot(t *testing.T, enter string) *fixture.Process {
	t.Helper()
	needRights(t)
	for _, program := range []string{"unshare", "chroot", "pivot_root"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	for name, from := range map[string]string{"driver": fixture.SharedDriver(t), "libtt_metal.so": fixture.LibraryOf(t, fixture.LayoutB)} {
		if err := os.WriteFile(filepath.Join(dir, name), fixture.Read(t, from), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "start")
	if err := os.WriteFile(script, fmt.Appendf(nil, inRoot, dir, enter), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := fixture.Start(script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	fixture.Do(t, p, "open /opt/libtt_metal.so")
	// The driver is the child of what forked into the PID namespace.
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		t.Fatalf("the children of %d are %q", p.PID, b)
	}
	p.PID = uint32(child)
	return p
}

// A process in mount and PID namespaces of its own, with its own copy of the
// library, is found and traced like any other, and both of its PIDs are known.
func TestNamespaces(t *testing.T) {
	for name, enter := range map[string]string{
		"as container runtimes do": `pivot_root . old; exec chroot . sh -c \"umount -l /old; exec /opt/driver\"`,
		"by chroot":                `exec chroot . /opt/driver`,
	} {
		t.Run(name, func(t *testing.T) {
			p := startInRoot(t, enter)
			if _, err := os.Stat("/opt/libtt_metal.so"); err == nil {
				t.Fatal("the library can be seen from here")
			}
			tr := start(t, Options{PIDs: []uint32{p.PID}})
			l := keep(t, tr, p)
			l.device(0, 1)
			l.device(1, 0, 1, 2)
			for range 20 {
				l.alloc(0, aggregator.DRAM, 1)
				l.alloc(1, aggregator.L1, 0, 1, 2)
			}
			l.free()
			s := l.compare()
			if s.PID != p.PID || s.Info.InnerPID != 1 || s.Info.BuildID == "" {
				t.Errorf("%d: %+v", s.PID, s.Info)
			}
			tr.noticed()
		})
	}
}

// What a process puts in its library's place, when it has it mapped, neither holds
// tracing up nor leads it elsewhere.
func TestLibrarysNameLeadsElsewhere(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("none of its business"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		replace func(path string) error
	}{
		{"a FIFO", func(path string) error { return unix.Mkfifo(path, 0o644) }},
		{"a link to another file", func(path string) error { return os.Symlink(secret, path) }},
		{"a link to another library", func(path string) error { return os.Symlink(fixture.LibraryOf(t, fixture.LayoutA), path) }},
		{"a link to itself", func(path string) error { return os.Symlink(path, path) }},
		{"a link to nothing", func(path string) error { return os.Symlink("/nowhere", path) }},
		{"a device", func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }},
		{"an empty file", func(path string) error { return os.WriteFile(path, nil, 0o644) }},
		{"a link to a program", func(path string) error { return os.Symlink("/proc/self/exe", path) }},
	}
	var processes []*fixture.Process
	var pids []uint32
	for _, test := range tests {
		path := fixture.Write(t, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB)))
		p := fixture.Launch(t)
		fixture.Do(t, p, "open %s", path)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := test.replace(path); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		processes, pids = append(processes, p), append(pids, p.PID)
	}
	tr := start(t, Options{PIDs: pids})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := keep(t, tr, processes[i])
			l.device(0, 1)
			l.alloc(0, aggregator.DRAM, 1)
			l.compare()
		})
	}
	tr.noticed()
}

// helpMaps maps a library and then as many more pieces as it is asked for and may, and
// says how many it has.
func helpMaps(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	want, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE); err != nil {
		return err
	}
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, want*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	n := 0
	for i := 0; i < want; i += 2 { // each second page makes two pieces
		if unix.Mprotect(b[i*page:(i+1)*page], unix.PROT_READ) != nil {
			break // no more are allowed
		}
		n += 2
	}
	fmt.Println(n)
	os.Stdin.Read(make([]byte, 1))
	return nil
}

// A process with 100,000 mappings, or as many as the kernel lets it have, is
// looked at in bounded time of a processor and memory, and found to have the library.
func TestManyMappings(t *testing.T) {
	needRights(t)
	c := helper("maps", fixture.LibraryOf(t, fixture.LayoutB), "100000")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer in.Close()
	var n int
	if _, err := fmt.Fscan(out, &n); err != nil {
		t.Fatal(err)
	}
	if n < 50_000 {
		t.Skipf("it may have %d mappings only (vm.max_map_count)", n)
	}
	pid := uint32(c.Process.Pid)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began, _ := proc.ProcessorTime(uint32(os.Getpid()))
	list, err := discover.NewFinder().Mappings(pid)
	ended, _ := proc.ProcessorTime(uint32(os.Getpid()))
	took := ended - began
	runtime.ReadMemStats(&after)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	memory := (after.TotalAlloc - before.TotalAlloc) >> 20
	t.Logf("%d mappings: %v, %d MB", n, took, memory)
	if took > 15*time.Second || memory > 100 {
		t.Errorf("%d mappings took %v and %d MB", n, took, memory)
	}
	tr := start(t, Options{PIDs: []uint32{pid}})
	tr.awaitProcess(pid)
	c.Process.Signal(syscall.SIGKILL)
}
