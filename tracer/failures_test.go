package tracer

import (
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/fixture"
)

// A build without the functions that throw when an allocation fails is not said to have had no failures.
func TestFailuresThatAreNotCovered(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	tr := start(t, Options{PIDs: []uint32{p.PID}})
	tr.awaitProcess(p.PID)
	if got := tr.process(p.PID); got.Info.NotCovered != aggregator.FailuresNotCovered || tr.snapshot().SeesFailures() {
		t.Errorf("not covered: %q", got.Info.NotCovered)
	}
}

// A failure's kind and numbers are known by what all releases' and builds' messages have in common.
func TestFailuresAreKnownByTheirWords(t *testing.T) {
	const unnamed = aggregator.NumMemories
	for text, want := range map[string]struct {
		aggregator.FailedAllocation
		memory aggregator.Memory
	}{
		"Out of Memory: Not enough space to allocate 134217728 B L1 buffer across 64 banks, where each bank needs to store 2097152 B, but bank size is 1393312 B (allocated: 8192 B, free: 1385120 B, largest free block: 1385000 B).": {
			aggregator.FailedAllocation{Kind: aggregator.OutOfMemory, Asked: 134217728, Banks: 64, PerBank: 2097152, BankBytes: 1393312, Allocated: 8192, Free: 1385120, Largest: 1385000}, aggregator.L1},
		"Out of Memory: Not enough space to allocate 3276800 B DRAM buffer across 4 banks, where each bank needs to store 819200 B, but bank size is only 1382720 B": {
			aggregator.FailedAllocation{Kind: aggregator.OutOfMemory, Asked: 3276800, Banks: 4, PerBank: 819200}, aggregator.DRAM},
		"Out of Memory: Not enough space after considering dependencies to allocate 2048 B L1_SMALL across 2 banks (1024 B per bank), bank size is 4096 B (allocated: 3500 B, free: 596 B, largest free block: 512 B). After subtracting 1 dependency range(s) and 0 additional occupied range(s), 512 B remained placeable": {
			aggregator.FailedAllocation{Kind: aggregator.OutOfMemory, Asked: 2048, Banks: 2, PerBank: 1024, BankBytes: 4096, Allocated: 3500, Free: 596, Largest: 512}, aggregator.L1Small},
		"Out of Memory: Not enough space after considering dependencies to allocate 1024 B DRAM across 1 banks (1024 B per bank)": {
			aggregator.FailedAllocation{Kind: aggregator.OutOfMemory, Asked: 1024, Banks: 1, PerBank: 1024}, aggregator.DRAM},
		"Out of Memory: Cannot allocate at an address below 4096. Allocation at 1024": {
			aggregator.FailedAllocation{Kind: aggregator.OutOfMemory}, unnamed},
		"Statically allocated circular buffers in program 166 clash with L1 buffers on core range [(x=0,y=0) - (x=4,y=7)]. L1 buffer allocated at 600256 and static circular buffer region ends at 621824": {
			aggregator.FailedAllocation{Kind: aggregator.Clash, Lowest: 600256, End: 621824}, aggregator.L1},
		"Statically allocated dataflow buffers in program 1 clash with L1 buffers on core range [0-0 - 7-7]. L1 buffer allocated at 600256 and static dataflow buffer region ends at 621824": {
			aggregator.FailedAllocation{Kind: aggregator.Clash, Lowest: 600256, End: 621824}, aggregator.L1},
		"Statically allocated dataflow buffers on core range [0-0 - 0-0] grow to 2565120 B which is beyond max L1 size of 1572864 B": {
			aggregator.FailedAllocation{Kind: aggregator.BeyondL1, End: 2565120, Limit: 1572864}, aggregator.L1},
		"Program size (74000) too large for kernel config buffer (70656) on ACTIVE_ETH": {
			aggregator.FailedAllocation{Kind: aggregator.ProgramTooLarge, Asked: 74000, Limit: 70656}, aggregator.L1},
	} {
		want.Message = text
		if got, memory := failure(text, nil); got == nil || *got != want.FailedAllocation || memory != want.memory {
			t.Errorf("%q: %+v in %v, want %+v in %v", text, got, memory, want.FailedAllocation, want.memory)
		}
	}
}

// The function that throws another message shows whether an allocation or a program failed.
func TestFailuresOfUnknownWordsAreKnownByWhoThrows(t *testing.T) {
	const text = "No place is left"
	thrownBy := func(function string) *aggregator.Stack {
		return &aggregator.Stack{Frames: []aggregator.Frame{{Function: "tt::assert::detail::tt_throw_impl<>"}, {Function: function}, {Function: "main"}}}
	}
	for _, function := range []string{"tt::tt_metal::BankManager::allocate_buffer", "tt::tt_metal::detail::ProgramImpl::finalize_program_offsets"} {
		if f, _ := failure(text, thrownBy(function)); f == nil || f.Kind != aggregator.OtherFailure || f.Message != text {
			t.Errorf("%s throws: %+v", function, f)
		}
	}
	for _, stack := range []*aggregator.Stack{nil, thrownBy("ttnn::operations::matmul")} {
		if f, _ := failure(text, stack); f != nil {
			t.Errorf("a failure of no allocation: %+v", f)
		}
	}
}
