package tracer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// inContainer runs the driver in a container, without limits that take rights to set.
const inContainer = `#!/bin/sh
exec %[1]s run --interactive --name tt-memtrace-test --runtime runc --network none \
	--ulimit nofile=1024:1024 --ulimit nproc=1000:1000 %[3]s --rootfs %[2]s /opt/driver
`

// A process in a container is found when it loads its own copy of the library, and
// shown with the container's ID, as the container's tools show it.
func TestContainerIsNamed(t *testing.T) {
	needRights(t)
	for _, program := range []string{"podman", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	dir, err := os.MkdirTemp("", "tt-memtrace-podman-") // its name is part of a socket's, which has to be short
	if err != nil {
		t.Fatal(err)
	}
	podman := fmt.Sprintf("podman --root %[1]s/storage --runroot %[1]s/run --tmpdir %[1]s/tmp --storage-driver vfs", dir)
	run := func(args string) string {
		out, err := exec.Command("sh", "-c", podman+" "+args).Output()
		if err != nil {
			t.Errorf("podman %s: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	const locks = "/dev/shm/libpod_lock" // wherever its storage is
	_, none := os.Stat(locks)
	t.Cleanup(func() {
		run("rm --force --time 0 tt-memtrace-test")
		if none != nil {
			os.Remove(locks)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "opt"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"driver": fixture.SharedDriver(t), "libtt_metal.so": fixture.LibraryOf(t, fixture.LayoutB)} {
		if err := os.WriteFile(filepath.Join(root, "opt", name), fixture.Read(t, from), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// All that the driver needs besides.
	var volumes string
	for _, d := range []string{"/usr", "/bin", "/lib", "/lib64"} {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			volumes += fmt.Sprintf(" --volume %s:%[1]s:ro", d)
		}
	}
	script := filepath.Join(dir, "start")
	if err := os.WriteFile(script, fmt.Appendf(nil, inContainer, podman, root, volumes), 0o755); err != nil {
		t.Fatal(err)
	}
	tr := start(t, Options{})
	p, err := fixture.Start(script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	fixture.Do(t, p, "open /opt/libtt_metal.so")
	inspected := strings.Fields(run("inspect --format '{{.State.Pid}} {{.Id}}' tt-memtrace-test"))
	if len(inspected) != 2 {
		t.Fatalf("podman says %q", inspected)
	}
	pid, err := strconv.ParseUint(inspected[0], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	p.PID = uint32(pid)
	tr.awaitProcess(p.PID)
	l := keep(t, tr, p)
	l.device(0, 1)
	l.alloc(0, aggregator.DRAM, 1)
	if s := l.compare(); s.Info.Container != "podman:"+inspected[1][:12] || s.Info.InnerPID != 1 {
		t.Errorf("%+v, of the container %s", s.Info, inspected[1])
	}
}
