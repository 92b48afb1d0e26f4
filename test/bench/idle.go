package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"tt-memtrace/test/program"
)

// idling is the cost of the program while nothing happens.
type idling struct {
	processor float64 // percent of a core
	// resident memory, how much of it are pages of files and of the ring, and what all that it runs takes, where pages
	// that several have count once, MB.
	resident, files, all float64
}

// real builds the real program, for commands that trace processes.
func real(pids []uint32, do func(command func(args ...string) *exec.Cmd) error) error {
	dir, err := os.MkdirTemp("", "tt-memtrace-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tool, err := program.Build(dir)
	if err != nil {
		return err
	}
	return do(func(args ...string) *exec.Cmd {
		for _, pid := range pids {
			args = append(args, "-p", fmt.Sprint(pid))
		}
		cmd := exec.Command(tool, args...)
		cmd.Stderr = os.Stderr
		return cmd
	})
}

// snapshots prints so many, each by a process of its own, and says what each takes, ms.
func snapshots(count int, command func(args ...string) *exec.Cmd) (ms []float64, err error) {
	for range count {
		begin := time.Now()
		if _, err := command("status").Output(); err != nil {
			return nil, err
		}
		ms = append(ms, float64(time.Since(begin).Microseconds())/1000)
	}
	return ms, nil
}

// stay traces processes that do nothing for a while.
func stay(pids []uint32, command func(args ...string) *exec.Cmd) (is idling, err error) {
	cmd := command("exporter", "--listen", "127.0.0.1:0")
	if err := cmd.Start(); err != nil {
		return is, err
	}
	defer func() { err = errors.Join(err, cmd.Process.Signal(os.Interrupt), cmd.Wait()) }()
	p, err := procfs.NewProc(cmd.Process.Pid)
	if err != nil {
		return is, err
	}
	const while = 10 * time.Second
	time.Sleep(while / 2) // it attaches, and becomes quiet
	before, err := p.Stat()
	if err != nil {
		return is, err
	}
	time.Sleep(while)
	after, err := p.Stat()
	if err != nil {
		return is, err
	}
	status, err := p.NewStatus()
	if err != nil {
		return is, err
	}
	all, err := withReaders(p)
	if err != nil {
		return is, err
	}
	is = idling{100 * (after.CPUTime() - before.CPUTime()) / while.Seconds(), float64(after.ResidentMemory()) / 1e6, float64(status.RssFile) / 1e6, float64(all) / 1e6}
	fmt.Fprintf(os.Stderr, "%d processes: idle %.2f %% of a core, %.1f MB, of which %.1f MB files; %.1f MB with its readers\n", len(pids), is.processor, is.resident, is.files, is.all)
	return is, nil
}

// withReaders is the memory of a process and of those that it started, bytes.
func withReaders(p procfs.Proc) (bytes uint64, err error) {
	processes, err := program.WithChildren(p.PID)
	if err != nil {
		return 0, err
	}
	for _, one := range processes {
		memory, err := one.ProcSMapsRollup()
		if err != nil {
			return 0, err
		}
		bytes += memory.Pss
	}
	return bytes, nil
}

// benchmark runs those of a package that have a name, and gives the fields of their lines.
func benchmark(name, folder string, flags ...string) (lines [][]string, err error) {
	cmd := exec.Command("go", append([]string{"test", "-run", "^$", "-bench", "^" + name + "$", folder}, flags...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running the benchmarks of %s: %w", folder, err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 4 && strings.HasPrefix(f[0], name) {
			lines = append(lines, f)
		}
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("the benchmarks of %s printed nothing", folder)
	}
	return lines, nil
}

// drawPage measures how long it takes until a browser has drawn the page of a report.
func (r *results) drawPage() error {
	lines, err := benchmark("BenchmarkPageOfALargeRecording", "./report", "-benchtime", "3x")
	if err != nil {
		return err
	}
	i := slices.Index(lines[0], "ms/drawn")
	if i < 1 {
		return fmt.Errorf("reading %q: no time", lines[0])
	}
	_, err = fmt.Sscan(lines[0][i-1], &r.drawn)
	return err
}

// benchmarks runs those of the accounts.
func benchmarks(r *results) error {
	lines, err := benchmark("BenchmarkApply", "./aggregator", "-benchtime", "200ms")
	if err != nil {
		return err
	}
	for _, f := range lines {
		// The name, the number of runs, then pairs of a value and its unit.
		row := account{}
		if _, err := fmt.Sscanf(f[0], "BenchmarkApply/live=%d/chips=%d", &row.live, &row.chips); err != nil {
			return fmt.Errorf("reading %q: %w", f, err)
		}
		for i := 2; i+1 < len(f); i += 2 {
			switch f[i+1] {
			case "ns/event":
				_, err = fmt.Sscan(f[i], &row.time)
			case "bytes/buffer":
				_, err = fmt.Sscan(f[i], &row.memory)
			case "allocs/op":
				_, err = fmt.Sscan(f[i], &row.allocations)
			}
			if err != nil {
				return fmt.Errorf("reading %q: %w", f, err)
			}
		}
		r.accounts = append(r.accounts, row)
	}
	return nil
}

// account is the cost of the accounts with so many live buffers on so many chips.
type account struct {
	live, chips  int
	time, memory float64 // ns an event, bytes a live buffer
	allocations  int     // of a pair of events
}
