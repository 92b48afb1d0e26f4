package cli

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/wire"
	"tt-memtrace/test/fixture"
)

// sampledByNobody is a driver of the small library that a user without any rights can run below the tool, and
// what it is to do: two buffers on two chips.
func sampledByNobody(t *testing.T) (program, driver, commands string) {
	t.Helper()
	program = ofNobody(t)
	dir := filepath.Dir(program)
	driver, err := fixture.Driver(dir)
	if err != nil {
		t.Fatal(err)
	}
	library, err := fixture.LayoutA.Library(dir)
	if err != nil {
		t.Fatal(err)
	}
	return program, driver, strings.Join([]string{"open " + library, "mesh 0 1 2", "alloc 64 0 0 0 4096 1024 64", "alloc 64 0 1 0 8192 1024 64", ""}, "\n")
}

// A user without any rights samples what they start, with each live command: the numbers are right, and what cannot
// be known is marked.
func TestSamplingWithoutRights(t *testing.T) {
	program, driver, commands := sampledByNobody(t)
	user := nobody(t)
	dir := filepath.Join(filepath.Dir(program), "out")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, int(user.Uid), int(user.Gid)); err != nil {
		t.Fatal(err)
	}
	recording := filepath.Join(dir, "run.ttm")
	// start runs it until the tool has said something, and then to its end.
	start := func(until string, args ...string) result {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		s := begin(t, call{program: program, args: append(args, "--", driver), nobody: true, stdin: r})
		r.Close()
		if _, err := io.WriteString(w, commands); err != nil {
			t.Fatal(err)
		}
		s.out.await(t, until)
		w.Close()
		return s.ends(fine)
	}
	contains(t, start(`"requested_bytes": 8192`, "status", "--json", "--every", "30ms", "--sample=20ms").out,
		`"source": "sampled"`, `"requested_bytes": 4096`, `"peaks_at_least": true`, `"replays": null`, `"code": "sampled"`)
	contains(t, start("Allocated 8192 bytes of L1 on device 2", "log", "--sample=20ms", "--record", recording).out, "Allocated 4096 bytes of DRAM on device 1")

	as := func(args ...string) string {
		t.Helper()
		return begin(t, call{program: program, args: args, nobody: true}).ends(fine).out
	}
	contains(t, as("report", "--json", recording), `"sampled": true`, `"peak_bytes": 8192`)
	contains(t, as("report", recording), "DRAM peaked at ≥ ", "sampled: ")
	refused := begin(t, call{program: program, args: []string{"report", "--stacks", "--", driver}, nobody: true}).ends(notPermitted)
	contains(t, refused.err, "cap_bpf", "--stacks needs probes: without it, the processes are sampled")

	// Without the flag, because probes are not permitted.
	pipe := filepath.Join(dir, "in")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	input, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	if _, err := io.WriteString(input, commands); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "model")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec '"+strings.ReplaceAll(driver, "'", `'\''`)+"' <"+"'"+strings.ReplaceAll(pipe, "'", `'\''`)+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	keys, screen, tty := terminal(t)
	s := begin(t, call{program: program, args: []string{"top", "--", script}, nobody: true, tty: tty, env: environ("TERM=xterm-256color", "HOME="+dir)})
	screen.await(t, "sampled ")
	screen.await(t, "driver") // in the list of processes
	if _, err := io.WriteString(keys, "q"); err != nil {
		t.Fatal(err)
	}
	s.ends(128 + int(syscall.SIGTERM)) // with the screen ends what it started
}

// An exporter samples a process that it did not start: what is not known has no series.
func TestExporterSamples(t *testing.T) {
	mayTrace(t)
	_, driver, commands := sampledByNobody(t)
	cmd := exec.Command(driver)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody(t)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		cmd.Wait()
	}()
	if _, err := io.WriteString(in, commands); err != nil {
		t.Fatal(err)
	}
	s := begin(t, call{args: []string{"exporter", "--sample=20ms", "--listen", "127.0.0.1:0"}})
	s.err.await(t, "/metrics\n")
	_, address, _ := strings.Cut(s.err.String(), "metrics at ")
	var page string
	eventually(t, patience, "it shows what the driver holds", func() bool {
		answer, err := http.Get("http://" + strings.TrimSpace(address))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		page = string(b)
		return err == nil && strings.Contains(page, `memory="l1"`)
	})
	contains(t, page, `source="sampled"`, `tt_memtrace_process_buffers{`)
	for _, unknown := range []string{"tt_memtrace_process_allocations_total{", "tt_memtrace_process_launches_total{", `tt_memtrace_memory_peak_requested_bytes{chip="1"`} {
		if strings.Contains(page, unknown) {
			t.Errorf("%s is not known, and in\n%s", unknown, page)
		}
	}
	s.signal(os.Interrupt)
	s.endsAmidOthers()
}

// What is sampled is forwarded, recorded and reported while it is, and a server plays the recording.
func TestSampledIntoEverySink(t *testing.T) {
	mayTrace(t)
	p := fixture.Launch(t)
	pid := strconv.Itoa(int(p.PID))
	_, server := serving(t, "--no-trace")
	recording := filepath.Join(t.TempDir(), "run.ttm")
	sessions := map[string]*session{}
	for name, args := range map[string][]string{
		"forward": {"forward", "--socket", server}, "record": {"record", recording}, "report": {"report"},
	} {
		s := begin(t, call{args: append(args, "--sample=20ms", "-p", pid)})
		s.err.await(t, "does not use the runtime yet") // it began
		sessions[name] = s
	}
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutA))
	eventually(t, patience, "it is sampled", func() bool {
		return strings.Contains(begin(t, call{args: []string{"status", "--json", "--from", recording}}).end().out, `"pid": `+pid)
	})
	fixture.Do(t, p, "mesh 0 1 2")
	dram := fixture.Do(t, p, "alloc 64 0 0 0 4096 1024 64")
	fixture.Do(t, p, "alloc 64 0 1 0 8192 1024 64")
	c := dial(t, server, 144)
	eventually(t, patience, "the server has what was forwarded", func() bool { return c.totals(1) == wire.Totals{DRAM: 4096, L1: 8192} })
	eventually(t, patience, "it is recorded", func() bool {
		return strings.Contains(begin(t, call{args: []string{"log", "--from", recording}}).end().out, "Allocated 8192 bytes of L1 on device 2")
	})
	fixture.Do(t, p, "free %s", dram)
	eventually(t, patience, "the server knows that it was freed", func() bool { return c.totals(1) == wire.Totals{L1: 8192} })
	if err := p.Exit(); err != nil {
		t.Fatal(err)
	}
	for name, s := range sessions {
		if r := s.ends(fine); name == "report" {
			contains(t, r.out, "sampled: ", "peaked at ≥ ")
		}
	}
	eventually(t, patience, "its end is known", func() bool { return c.totals(1) == wire.Totals{} })
	contains(t, run(t, fine, "serve", "--socket", filepath.Join(t.TempDir(), "s"), "--from", recording).out,
		"Allocated 4096 bytes of DRAM on device 1", "Allocated 8192 bytes of L1 on device 2")
}
