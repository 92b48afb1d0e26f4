package export

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/schema"
)

// placed are changes of a program's buffers: a circular one on 64 cores that
// comes and goes, and a dataflow one.
func placed(f func(aggregator.CBChange)) {
	grid := []aggregator.CoreRange{{X0: 0, Y0: 0, X1: 7, Y1: 7}}
	circular := &aggregator.CircularBuffer{Address: 0x19d60, Size: 4096, Ranges: grid}
	dataflow := &aggregator.CircularBuffer{Address: 0x1ad60, Size: 2048, Kind: aggregator.Dataflow, Ranges: []aggregator.CoreRange{{X1: 1}}}
	chip := aggregator.Chip{Number: 3}
	f(aggregator.CBChange{Time: 1, PID: 100, Chip: chip, Total: 4096 * 64, CB: circular})
	f(aggregator.CBChange{Time: 2, PID: 100, Chip: chip, Total: 4096*64 + 4096, CB: dataflow})
	f(aggregator.CBChange{Time: 3, PID: 100, Chip: chip, Freed: true, Total: 4096, CB: circular})
}

// The original's users grep these words and count their columns.
func TestProgramLinesAreTheOriginalsWords(t *testing.T) {
	var b bytes.Buffer
	placed(NewLogger(&b, false, wall).CBChange)
	want := `✓ [CB_ALLOC] Device 3: +0.25 MB (Total: 0.25 MB)
✓ [CB_ALLOC] Device 3: +0.00390625 MB (Total: 0.253906 MB)
✗ [CB_FREE] Device 3: -0.25 MB (Total: 0.00390625 MB)
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestMebibytesAreThoseOfACppStream(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0", 1: "9.53674e-07", 262144: "0.25", 1 << 20: "1", 123456789: "117.738", 1 << 40: "1.04858e+06", 999999 << 20: "999999",
	} {
		if got := mebibytes(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}

func TestProgramLinesAreAsTheirSchemaSays(t *testing.T) {
	var b bytes.Buffer
	placed(NewLogger(&b, true, wall).CBChange)
	events := []string{`"event":"cb_alloc"`, `"event":"dfb_alloc"`, `"event":"cb_free"`}
	s := schema.Compile(t, schema.Of(t, "", ProgramLine{}, true))
	for line := range strings.Lines(b.String()) {
		if err := schema.Validate(t, s, line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if !strings.Contains(line, events[0]) {
			t.Errorf("%s: no %s", line, events[0])
		}
		events = events[1:]
	}
	if len(events) > 0 {
		t.Errorf("no line for %v", events)
	}
}

// loaded are changes of a kernel's binaries: one that comes and goes, and one of
// unknown size.
func loaded(f func(aggregator.KernelChange)) {
	reader := &aggregator.Kernel{Name: "reader_unary", Processor: "brisc", Bytes: 2048, Sized: true}
	fabric := &aggregator.Kernel{Name: "fabric_mux", Processor: "erisc0", Type: aggregator.FabricKernel}
	chip := aggregator.Chip{Number: 3}
	f(aggregator.KernelChange{Time: 1, PID: 100, Chip: chip, Total: 2048, Kernel: reader})
	f(aggregator.KernelChange{Time: 2, PID: 100, Chip: chip, Total: 2048, Kernel: fabric})
	f(aggregator.KernelChange{Time: 3, PID: 100, Chip: chip, Unloaded: true, Total: 0, Kernel: reader})
}

func TestKernelLinesAreTheOriginalsWords(t *testing.T) {
	var b bytes.Buffer
	loaded(NewLogger(&b, false, wall).KernelChange)
	want := `✓ [KERNEL_LOAD] Application kernel on Device 3: +0.00195312 MB (Total: 0.00195312 MB)
✓ [KERNEL_LOAD] Fabric kernel on Device 3: +0 MB (Total: 0.00195312 MB)
✗ [KERNEL_UNLOAD] Application kernel on Device 3: -0.00195312 MB (Total: 0 MB)
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestKernelLinesAreAsTheirSchemaSays(t *testing.T) {
	var b bytes.Buffer
	loaded(NewLogger(&b, true, wall).KernelChange)
	events := []string{`"event":"kernel_load"`, `"size_bytes":null`, `"event":"kernel_unload"`}
	s := schema.Compile(t, schema.Of(t, "", KernelLine{}, true))
	for line := range strings.Lines(b.String()) {
		if err := schema.Validate(t, s, line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if !strings.Contains(line, events[0]) {
			t.Errorf("%s: no %s", line, events[0])
		}
		events = events[1:]
	}
	if len(events) > 0 {
		t.Errorf("no line for %v", events)
	}
}

// A kernel's words are pieces of a path, which the process chose.
func TestKernelLinesAreInert(t *testing.T) {
	var b bytes.Buffer
	NewLogger(&b, true, wall).KernelChange(aggregator.KernelChange{Kernel: &aggregator.Kernel{Name: hostile, Processor: hostile}})
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if !unicode.IsPrint(r) {
			t.Fatalf("%q has %q", &b, r)
		}
	}
}

// failed are failures of each kind; a memory that is out with and without the runtime's numbers.
func failed(l *Logger) {
	f := l.AllocationFailed
	l.Site = func(s *aggregator.Stack) string { return "site of " + s.Frames[0].Function }
	full := aggregator.FailedAllocation{Message: "Out of Memory: \"L1\"" + hostile, Asked: 1 << 24, Banks: 64, PerBank: 1 << 18, BankBytes: 1 << 20, Free: 0, Largest: 0}
	f(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: 1, PID: 100, TID: 101, Memory: aggregator.L1, Failure: &full})
	f(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: 2, PID: 100, Memory: aggregator.DRAM, Failure: &aggregator.FailedAllocation{Message: "Out of Memory"}})
	f(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: 3, PID: 100, TID: 101, Memory: aggregator.L1,
		Failure: &aggregator.FailedAllocation{Kind: aggregator.Clash, Message: "they clash", End: 0x2000, Lowest: 0x1000}})
	f(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: 4, PID: 100, Memory: aggregator.L1, Stack: &aggregator.Stack{Frames: []aggregator.Frame{{Function: "step"}}},
		Failure: &aggregator.FailedAllocation{Kind: aggregator.BeyondL1, Message: "they grow", End: 0x2000, Limit: 0x1000}})
	f(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: 5, PID: 100, Memory: aggregator.L1,
		Failure: &aggregator.FailedAllocation{Kind: aggregator.ProgramTooLarge, Message: "it is large", Asked: 6576, Limit: 1024}})
	f(&aggregator.Event{Kind: aggregator.AllocationFailed, Time: 6, PID: 100, Memory: aggregator.NumMemories,
		Failure: &aggregator.FailedAllocation{Kind: aggregator.OtherFailure, Message: "no words of it are known"}})
}

func TestFailureLinesAreAsTheirSchemaSays(t *testing.T) {
	var b bytes.Buffer
	failed(NewLogger(&b, true, wall))
	want := []string{
		`"event":"out_of_memory","pid":100,"tid":101,"memory":"l1","requested_bytes":16777216,"requested_per_bank_bytes":262144,"free_per_bank_bytes":0,"largest_free_per_bank_bytes":0,"circular_buffers_end_address":null,`,
		`"event":"out_of_memory","pid":100,"tid":null,"memory":"dram","requested_bytes":null,"requested_per_bank_bytes":null,"free_per_bank_bytes":null,"largest_free_per_bank_bytes":null,`,
		`"event":"clash","pid":100,"tid":101,"memory":"l1","requested_bytes":null,"requested_per_bank_bytes":null,"free_per_bank_bytes":null,"largest_free_per_bank_bytes":null,"circular_buffers_end_address":8192,"l1_begin_address":4096,"program_bytes":null,"limit_bytes":null,"site":null,"message":"they clash"`,
		`"event":"beyond_l1","pid":100,"tid":null,"memory":"l1","requested_bytes":null,"requested_per_bank_bytes":null,"free_per_bank_bytes":null,"largest_free_per_bank_bytes":null,"circular_buffers_end_address":8192,"l1_begin_address":null,"program_bytes":null,"limit_bytes":4096,"site":"site of step","message":"they grow"`,
		`"event":"program_too_large","pid":100,"tid":null,"memory":"l1","requested_bytes":null,"requested_per_bank_bytes":null,"free_per_bank_bytes":null,"largest_free_per_bank_bytes":null,"circular_buffers_end_address":null,"l1_begin_address":null,"program_bytes":6576,"limit_bytes":1024,"site":null,"message":"it is large"`,
		`"event":"other","pid":100,"tid":null,"memory":"unknown","requested_bytes":null,"requested_per_bank_bytes":null,"free_per_bank_bytes":null,"largest_free_per_bank_bytes":null,"circular_buffers_end_address":null,"l1_begin_address":null,"program_bytes":null,"limit_bytes":null,"site":null,"message":"no words of it are known"`,
	}
	s := schema.Compile(t, schema.Of(t, "", LoggedFailure{}, true))
	lines := slices.Collect(strings.Lines(b.String()))
	if len(lines) != len(want) {
		t.Fatalf("%d lines:\n%s", len(lines), &b)
	}
	for i, line := range lines {
		if err := schema.Validate(t, s, line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if !strings.Contains(line, want[i]) {
			t.Errorf("%s: no %s", line, want[i])
		}
	}
}

// The runtime's message is the process's text: it stays on its line, and in its quotes.
func TestFailureLinesAsText(t *testing.T) {
	var b bytes.Buffer
	failed(NewLogger(&b, false, wall))
	for _, r := range strings.ReplaceAll(b.String(), "\n", "") {
		if !unicode.IsPrint(r) {
			t.Fatalf("%q has %q", &b, r)
		}
	}
	lines := slices.Collect(strings.Lines(b.String()))
	if len(lines) != 6 || !strings.HasPrefix(lines[0], `⚠ [PID 100] Allocation failed: "Out of Memory: \"L1\"`) ||
		lines[2] != "⚠ [PID 100] Program failed: \"they clash\"\n" || lines[3] != "⚠ [PID 100] Program failed: \"they grow\" in \"site of step\"\n" {
		t.Error(b.String())
	}
}
