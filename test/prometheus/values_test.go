package prometheus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/export"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// output is what a program writes, as it comes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// latest is the last whole status in the output of `status --json --every`.
func latest(t *testing.T, out string) (export.Status, bool) {
	t.Helper()
	end := strings.LastIndex(out, "\n}\n")
	if end < 0 {
		return export.Status{}, false
	}
	begin := strings.LastIndex(out[:end], "\n{\n") // -1 for the first one
	var s export.Status
	if err := json.Unmarshal([]byte(out[begin+1:end+2]), &s); err != nil {
		t.Fatal(err)
	}
	return s, true
}

// values are what a status says, by the keys of the series that say the same.
func values(s export.Status) map[string]float64 {
	v := map[string]float64{}
	set := func(n float64, parts ...any) {
		v[strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(parts...)), " ", "|")] = n
	}
	optional := func(n *uint64, parts ...any) {
		if n != nil {
			set(float64(*n), parts...)
		}
	}
	for _, c := range s.Chips {
		for m, u := range c.Memory {
			optional(u.Requested, "memory_requested_bytes", c.Chip, m)
			optional(u.PeakRequested, "memory_peak_requested_bytes", c.Chip, m)
			optional(u.Buffers, "memory_buffers", c.Chip, m)
			optional(u.Reserved, "memory_reserved_bytes", c.Chip, m)
			optional(u.PeakReserved, "memory_peak_reserved_bytes", c.Chip, m)
			optional(u.Capacity, "memory_capacity_bytes", c.Chip, m)
		}
		p := c.Programs
		optional(p.Physical, "program_physical_bytes", c.Chip)
		optional(p.Logical, "program_logical_bytes", c.Chip)
		optional(p.PeakPhysical, "program_peak_physical_bytes", c.Chip)
		optional(p.PeakLogical, "program_peak_logical_bytes", c.Chip)
		optional(p.Top, "program_end_address_bytes", c.Chip)
		optional(p.Programs, "programs", c.Chip)
		optional(c.Kernels.Bytes, "kernel_bytes", c.Chip)
		optional(c.Kernels.Programs, "kernel_programs", c.Chip)
		optional(c.Kernels.DRAMBytes, "kernel_dram_bytes", c.Chip)
		set(float64(len(c.PIDs)), "chip_processes", c.Chip)
	}
	for _, p := range s.Processes {
		for _, c := range p.Chips {
			for m, u := range c.Memory {
				if u.PeakRequested != nil && *u.PeakRequested > 0 {
					optional(u.Requested, "process_memory_requested_bytes", p.PID, c.Chip, m)
					optional(u.Reserved, "process_memory_reserved_bytes", p.PID, c.Chip, m)
				}
			}
			if c.Programs.PeakLogical != nil && *c.Programs.PeakLogical > 0 {
				optional(c.Programs.Physical, "process_program_physical_bytes", p.PID, c.Chip)
			}
		}
		optional(p.Buffers, "process_buffers", p.PID)
		optional(p.Allocs, "process_allocations_total", p.PID)
		optional(p.Frees, "process_frees_total", p.PID)
		set(float64(p.ImplicitFrees), "process_implicit_frees_total", p.PID)
		set(float64(p.Found), "process_preexisting_buffers", p.PID)
		set(float64(p.Repaired), "process_corrections_total", p.PID)
	}
	set(float64(s.Events), "events_total")
	set(float64(s.Lost), "events_lost_total")
	set(float64(len(s.Processes)), "processes")
	return v
}

// differences compares what Prometheus has with what a status says, both ways.
func differences(t *testing.T, p *server, s export.Status) []string {
	t.Helper()
	want := values(s)
	kinds := map[string]bool{}
	for k := range want {
		kind, _, _ := strings.Cut(k, "|")
		kinds[kind] = true
	}
	var list []string
	seen := map[string]bool{}
	for _, one := range p.query(t, `{__name__=~"tt_memtrace_.*"}`) {
		name := strings.TrimPrefix(one.labels["__name__"], "tt_memtrace_")
		if !kinds[name] {
			continue
		}
		k := name
		for _, l := range []string{"pid", "chip", "memory"} {
			if one.labels[l] != "" {
				k += "|" + one.labels[l]
			}
		}
		seen[k] = true
		if value, there := want[k]; !there || value != one.value {
			list = append(list, fmt.Sprintf("%s is %v, the status has %v (%v)", k, one.value, value, there))
		}
	}
	for k := range want {
		if !seen[k] {
			list = append(list, k+" is not in Prometheus")
		}
	}
	return list
}

// Prometheus has what `status --json` has, of a run of the real runtime on eight chips.
func TestValuesEqualStatus(t *testing.T) {
	if err := tracer.CheckRights(); err != nil {
		t.Skip(err)
	}
	installed(t, "prometheus")
	r, err := rig.Install(t.Context(), rig.DefaultRelease)
	if errors.Is(err, rig.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.Prepare(t.Context(), rig.Options{Cluster: "t3k", Script: rig.Workload, Args: []string{"--steps", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	args := append([]string{"status", "--json", "--every", "200ms", "--metrics", "127.0.0.1:0", "--", "sh", "-c", `exec "$@" >&2`, "sh"}, w.Argv...)
	cmd := exec.Command(tool, args...)
	var out, log output
	cmd.Env, cmd.Stdout, cmd.Stderr = w.Env, &out, &log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = patience
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	defer func() {
		if !ended {
			unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			cmd.Wait()
		}
		if t.Failed() {
			for line := range strings.Lines(log.String()) {
				t.Logf("%.300s", line)
			}
		}
	}()
	var address string
	eventually(t, "the address is printed", func() bool {
		_, rest, found := strings.Cut(log.String(), "metrics at ")
		address, _, _ = strings.Cut(rest, "/metrics\n")
		return found && address != rest
	})
	p := start(t, address)
	compared := 0
	for rest := range 4 { // the last one is after freeing all
		eventually(t, "the workload rests", func() bool {
			_, line, found := strings.Cut(log.String(), fmt.Sprintf(`"event": "rest", "n": %d,`, rest))
			return found && strings.Contains(line, "\n") // which has all buffers
		})
		// Only at this rest point can Prometheus have what the allocators say; what a status has
		// after that is of this point too.
		asAllocators(t, p, message(t, log.String(), rest))
		settles(t, "Prometheus has what the status says", func() []string {
			s, ok := latest(t, out.String())
			if !ok {
				return []string{"no status"}
			}
			compared = len(values(s))
			return differences(t, p, s)
		})
		t.Logf("rest point %d: %d values are equal", rest, compared)
		if compared < 8*40 {
			t.Errorf("at rest point %d only %d values were compared", rest, compared)
		}
		if rest == 1 {
			promtoolOnMetrics(t, scrape(t, address))
		}
		io.WriteString(stdin, "go\n")
	}
	eventually(t, "the workload closes its devices", func() bool { return strings.Contains(log.String(), `"event": "closed"`) })
	io.WriteString(stdin, "go\n")
	stdin.Close()
	err = cmd.Wait()
	ended = true
	if err != nil {
		t.Error(err)
	}
}

// message is a rest point of the workload, as it printed it.
func message(t *testing.T, log string, rest int) (m rig.Message) {
	t.Helper()
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, fmt.Sprintf(`{"event": "rest", "n": %d,`, rest)) {
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}

// asAllocators waits until Prometheus has the bytes that the allocators say are reserved, and a
// largest free block that fits theirs: it is an upper bound, never more than what is free.
func asAllocators(t *testing.T, p *server, m rig.Message) {
	t.Helper()
	type memory struct{ chip, name string }
	reserved, least, free := map[memory]float64{}, map[memory]float64{}, map[memory]float64{}
	for _, d := range m.Devices {
		for _, c := range d.Chips {
			for name, bytes := range m.Reserved(c) {
				reserved[memory{fmt.Sprint(c), strings.ToLower(name)}] = float64(bytes)
			}
		}
		holds := map[string]bool{}
		for _, b := range d.Buffers {
			holds[b.Type] = true
		}
		for name, v := range d.Views {
			if !holds[name] {
				continue
			}
			for _, c := range d.Chips {
				k := memory{fmt.Sprint(c), strings.ToLower(name)}
				largest := float64(v.LargestFreePerBank * v.NumBanks)
				if old, ok := least[k]; !ok || largest < old {
					least[k] = largest
				}
				free[k] = max(free[k], float64(v.Capacity()-v.Reserved()))
			}
		}
	}
	exact := 0
	settles(t, "Prometheus has what the allocators say", func() (wrong []string) {
		of := func(metric string) map[memory]float64 {
			values := map[memory]float64{}
			for _, s := range p.query(t, metric) {
				values[memory{s.labels["chip"], s.labels["memory"]}] = s.value
			}
			return values
		}
		has := of("tt_memtrace_memory_reserved_bytes")
		for k, bytes := range reserved {
			if has[k] != bytes {
				wrong = append(wrong, fmt.Sprintf("%v: %v bytes are reserved, not %v", k, has[k], bytes))
			}
		}
		largest := of("tt_memtrace_memory_largest_free_block_bytes")
		if len(largest) != len(least) {
			wrong = append(wrong, fmt.Sprintf("%d memories have a largest free block, %d have buffers", len(largest), len(least)))
		}
		exact = 0
		for k, bytes := range largest {
			if bytes < least[k] || bytes > free[k] {
				wrong = append(wrong, fmt.Sprintf("%v: the largest free block is %v, the allocator says %v of %v", k, bytes, least[k], free[k]))
			}
			if bytes == least[k] {
				exact++
			}
		}
		return wrong
	})
	t.Logf("largest free block: %d of %d are exact, the others upper bounds", exact, len(least))
}

// promtoolOnMetrics has promtool look at a scrape. It ignores Go's own
// metrics, which come with it.
func promtoolOnMetrics(t *testing.T, text string) {
	t.Helper()
	var ours []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "tt_memtrace_") {
			ours = append(ours, line)
		}
	}
	if len(ours) < 100 {
		t.Errorf("%d lines:\n%s", len(ours), text)
	}
	cmd := exec.Command(installed(t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(strings.Join(ours, ""))
	if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, said)
	}
}
