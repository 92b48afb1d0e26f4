package aggregator

import "testing"

func TestAccounts(t *testing.T) {
	const device, sub, second = 0x100, 0x200, 0x300
	for name, c := range map[string]struct {
		events []Event
		want   []string
	}{
		"nothing": {},
		"an allocation counts what was asked for and what all banks gave": {
			[]Event{opened(1, device, host(0)), seen(1, device+1, device), alloc(1, device, 1, DRAM, 100), alloc(1, device, 2, L1, 50)},
			[]string{"chip 0 [1]: DRAM 1x100/120 L1 1x50/320", "pid 1: 2 live 2 allocs", "  on 0: DRAM 1x100/120 L1 1x50/320"},
		},
		"a free gives it back and leaves the peak": {
			[]Event{opened(1, device, host(0)), seen(1, device+1, device), alloc(1, device, 1, DRAM, 100), freed(1, device, 1)},
			[]string{"chip 0 [1]: DRAM 0x0/0^100/120", "pid 1: 0 live 1 allocs 1 frees", "  on 0: DRAM 0x0/0^100/120"},
		},
		"a mesh counts in full on every chip and as one buffer": {
			[]Event{opened(1, device, host(0, 1, 4)), seen(1, device+1, device), alloc(1, device, 1, L1, 50)},
			[]string{
				"chip 0 [1]: L1 1x50/320", "chip 1 [1]: L1 1x50/320", "chip 4 [1]: L1 1x50/320",
				"pid 1: 1 live 1 allocs", "  on 0: L1 1x50/320", "  on 1: L1 1x50/320", "  on 4: L1 1x50/320",
			},
		},
		"a mesh that names a chip twice counts once": {
			[]Event{opened(1, device, host(3, 3)), alloc(1, device, 1, L1, 50)},
			[]string{"chip 3 [1]: L1 1x50/0+1", "pid 1: 1 live 1 allocs", "  on 3: L1 1x50/0+1"},
		},
		"a submesh adds to the chips that it shares with its mesh": {
			[]Event{
				opened(1, device, host(0, 1)), seen(1, device+1, device), opened(1, sub, host(1)), seen(1, sub+1, sub),
				alloc(1, device, 1, DRAM, 100), alloc(1, sub, 2, DRAM, 30),
			},
			[]string{
				"chip 0 [1]: DRAM 1x100/120", "chip 1 [1]: DRAM 2x130/156",
				"pid 1: 2 live 2 allocs", "  on 0: DRAM 1x100/120", "  on 1: DRAM 2x130/156",
			},
		},
		"a submesh that closes leaves its chips to the mesh": {
			[]Event{opened(1, device, host(0, 1)), opened(1, sub, host(1)), closed(1, sub), gone(1, sub+1)},
			[]string{"chip 0 [1]:", "chip 1 [1]:", "pid 1: 0 live", "  on 0:", "  on 1:"},
		},
		"two processes on a chip are kept apart and summed, by PID and not by address": {
			[]Event{
				opened(1, device, host(0)), opened(2, device, host(0)), seen(1, device+1, device), seen(2, device+1, device),
				alloc(1, device, 1, DRAM, 100), alloc(2, device, 1, DRAM, 50), freed(1, device, 1), alloc(2, device, 2, DRAM, 10),
			},
			[]string{
				"chip 0 [1 2]: DRAM 2x60/72^150/180",
				"pid 1: 0 live 1 allocs 1 frees", "  on 0: DRAM 0x0/0^100/120", "pid 2: 2 live 2 allocs", "  on 0: DRAM 2x60/72",
			},
		},
		"a private numbering is no chip of the host": {
			[]Event{
				opened(1, device, host(0)), opened(2, device, private(2, 0)), opened(3, device, private(3, 0)),
				alloc(1, device, 1, L1, 10), alloc(2, device, 1, L1, 20), alloc(3, device, 1, L1, 30),
			},
			[]string{
				"chip 0 [1]: L1 1x10/0+1", "chip 2:0 [2]: L1 1x20/0+1", "chip 3:0 [3]: L1 1x30/0+1",
				"pid 1: 1 live 1 allocs", "  on 0: L1 1x10/0+1", "pid 2: 1 live 1 allocs", "  on 2:0: L1 1x20/0+1",
				"pid 3: 1 live 1 allocs", "  on 3:0: L1 1x30/0+1",
			},
		},
		"a private numbering goes with its process": {
			[]Event{opened(2, device, private(2, 0)), alloc(2, device, 1, L1, 20), opened(3, device, host(0)), exited(2)},
			[]string{"chip 0 [3]:", "pid 3: 0 live", "  on 0:", "ended pid 2: 1 live 1 allocs", "  on 2:0: L1 1x20/0+1"},
		},
		"a private numbering stays while another process uses it": {
			[]Event{opened(2, device, private(2, 0)), opened(3, device, private(2, 0)), exited(2), alloc(3, device, 1, L1, 20)},
			[]string{"chip 2:0 [3]: L1 1x20/0+1", "pid 3: 1 live 1 allocs", "  on 2:0: L1 1x20/0+1", "ended pid 2: 0 live", "  on 2:0:"},
		},
		"without a capacity the reserved size is unknown": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, DRAM, 100), alloc(1, device, 2, DRAM, 10)},
			[]string{"chip 0 [1]: DRAM 2x110/0+2", "pid 1: 2 live 2 allocs", "  on 0: DRAM 2x110/0+2"},
		},
		"a capacity that becomes known gives it": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, DRAM, 100), seen(1, device+1, device), alloc(1, device, 2, DRAM, 10)},
			[]string{"chip 0 [1]: DRAM 2x110/132", "pid 1: 2 live 2 allocs", "  on 0: DRAM 2x110/132"},
		},
		"a capacity without the buffer's memory leaves the reserved size unknown": {
			[]Event{opened(1, device, host(0)), seen(1, device+1, device), alloc(1, device, 1, Trace, 100), alloc(1, device, 2, L1Small, 10)},
			[]string{"chip 0 [1]: L1_SMALL 1x10/0+1 TRACE 1x100/0+1", "pid 1: 2 live 2 allocs", "  on 0: L1_SMALL 1x10/0+1 TRACE 1x100/0+1"},
		},
		"an empty buffer is live and takes nothing": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 0)},
			[]string{"chip 0 [1]: L1 1x0/0", "pid 1: 1 live 1 allocs", "  on 0: L1 1x0/0"},
		},
		"an unknown memory is odd, and its free is unmatched": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, NumMemories, 10), alloc(1, device, 2, 255, 10), freed(1, device, 1)},
			[]string{"chip 0 [1]:", "pid 1: 0 live 1 unmatched 2 odd", "  on 0:"},
		},
		"a size beyond all chips is odd": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, DRAM, 1<<63), {Kind: Alloc, PID: 1, Device: device, Buffer: 2, PerBank: 1 << 63}},
			[]string{"chip 0 [1]:", "pid 1: 0 live 2 odd", "  on 0:"},
		},
		"a capacity beyond all chips is unknown": {
			[]Event{
				opened(1, device, host(0)), seenWith(1, device+1, device, Capacity{DRAM: {Known: true, Count: 1 << 31, Bytes: 1}, L1: {Known: true, Count: 1, Bytes: 1 << 60}}),
				alloc(1, device, 1, DRAM, 100), alloc(1, device, 2, L1, 100),
			},
			[]string{"chip 0 [1]: DRAM 1x100/0+1 L1 1x100/0+1", "pid 1: 2 live 2 allocs", "  on 0: DRAM 1x100/0+1 L1 1x100/0+1"},
		},
		"events of no known kind or without their contents are odd": {
			[]Event{{Kind: 0, PID: 1}, {Kind: 99, PID: 1}, {Kind: AllocatorSeen, PID: 1, Device: device}},
			[]string{"pid 1: 0 live 3 odd"},
		},
		"a free of an unknown buffer is counted and changes nothing": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), freed(1, device, 2), freed(2, device, 1)},
			[]string{"chip 0 [1]: L1 1x10/0+1", "pid 1: 1 live 1 allocs 1 unmatched", "  on 0: L1 1x10/0+1", "pid 2: 0 live 1 unmatched"},
		},
		"what a late process frees is from before, until it was read": {
			[]Event{{Kind: ProcessStart, PID: 1, Process: &Process{Started: 1, Late: true}}, freed(1, device, 1),
				{Kind: ProcessStart, PID: 1, Process: &Process{Started: 1}}, freed(1, device, 2)},
			[]string{"pid 1: 0 live 1 unmatched"},
		},
		"a second free is unmatched": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), freed(1, device, 1), freed(1, device, 1)},
			[]string{"chip 0 [1]: L1 0x0/0^10/0", "pid 1: 0 live 1 allocs 1 frees 1 unmatched", "  on 0: L1 0x0/0^10/0"},
		},
		"a buffer in the place of another replaces it": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), alloc(1, device, 1, DRAM, 20)},
			[]string{
				"chip 0 [1]: DRAM 1x20/0+1 L1 0x0/0^10/0",
				"pid 1: 1 live 2 allocs 1 implicit 1 replaced", "  on 0: DRAM 1x20/0+1 L1 0x0/0^10/0",
			},
		},
		"a free trusts what was allocated, not what it says itself": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), {Kind: Free, PID: 1, Device: second, Buffer: 1, Memory: DRAM, Size: 1 << 40}},
			[]string{"chip 0 [1]: L1 0x0/0^10/0", "pid 1: 0 live 1 allocs 1 frees", "  on 0: L1 0x0/0^10/0"},
		},
		"an allocator takes all of its own with it": {
			[]Event{
				opened(1, device, host(0)), opened(1, second, host(0)), alloc(1, device, 1, L1, 10), alloc(1, device, 2, L1, 20),
				alloc(1, second, 3, L1, 5), gone(1, device+1),
			},
			[]string{"chip 0 [1]: L1 1x5/0+1^35/0", "pid 1: 1 live 3 allocs 2 implicit", "  on 0: L1 1x5/0+1^35/0"},
		},
		"a closed device keeps its buffers until its allocator goes": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), closed(1, device)},
			[]string{"chip 0 [1]: L1 1x10/0+1", "pid 1: 1 live 1 allocs", "  on 0: L1 1x10/0+1"},
		},
		"a chip that a process closed is not its own any more, and stays known": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), closed(1, device), gone(1, device+1)},
			[]string{"chip 0 []: L1 0x0/0^10/0", "pid 1: 0 live 1 allocs 1 implicit"},
		},
		"to close what is not open is nothing": {
			[]Event{closed(1, device), gone(1, device+1)},
			[]string{"pid 1: 0 live"},
		},
		"buffers of a device that nothing is known of are unplaced": {
			[]Event{alloc(1, device, 1, L1, 10), alloc(1, device, 2, L1, 20), freed(1, device, 1), opened(1, second, nil), alloc(1, second, 3, DRAM, 5)},
			[]string{"pid 1: 2 live 3 allocs 1 frees", "  unplaced: DRAM 1x5/0+1 L1 1x20/0+1^30/0"},
		},
		"they get their place when the device is reported": {
			[]Event{alloc(1, device, 1, L1, 10), alloc(1, second, 2, L1, 7), late(opened(1, device, host(0, 1))), freed(1, second, 2)},
			[]string{
				"chip 0 [1]: L1 1x10/0+1", "chip 1 [1]: L1 1x10/0+1",
				"pid 1: 1 live 2 allocs 1 frees late", "  on 0: L1 1x10/0+1", "  on 1: L1 1x10/0+1", "  unplaced: L1 0x0/0^17/0",
			},
		},
		"a device that is reported again is the same": {
			[]Event{opened(1, device, host(0, 1)), alloc(1, device, 1, L1, 10), opened(1, device, host(0, 1))},
			[]string{
				"chip 0 [1]: L1 1x10/0+1", "chip 1 [1]: L1 1x10/0+1",
				"pid 1: 1 live 1 allocs", "  on 0: L1 1x10/0+1", "  on 1: L1 1x10/0+1",
			},
		},
		"a device with other chips at the same address is another": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), opened(1, device, host(1)), alloc(1, device, 2, L1, 5)},
			[]string{"chip 0 []: L1 0x0/0^10/0", "chip 1 [1]: L1 1x5/0+1", "pid 1: 1 live 2 allocs 1 implicit", "  on 1: L1 1x5/0+1"},
		},
		"a device that opens at the address of a closed one is another": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), closed(1, device), opened(1, device, host(0))},
			[]string{"chip 0 [1]: L1 0x0/0^10/0", "pid 1: 0 live 1 allocs 1 implicit", "  on 0: L1 0x0/0^10/0"},
		},
		"peaks are of a process's life, over all its devices": {
			[]Event{
				opened(1, device, host(0)), alloc(1, device, 1, L1, 10), closed(1, device), gone(1, device+1),
				opened(1, second, host(0)), alloc(1, second, 1, L1, 4),
			},
			[]string{"chip 0 [1]: L1 1x4/0+1^10/0", "pid 1: 1 live 2 allocs 1 implicit", "  on 0: L1 1x4/0+1^10/0"},
		},
		"a late device marks its process": {
			[]Event{late(opened(1, device, host(0))), opened(2, device, host(0)), closed(1, device), gone(1, device+1)},
			[]string{"chip 0 [2]:", "pid 1: 0 live late", "pid 2: 0 live", "  on 0:"},
		},
		"an exit takes everything and is remembered as it was": {
			[]Event{started(1, 5), opened(1, device, host(0)), alloc(1, device, 1, L1, 10), alloc(1, second, 2, L1, 3), exited(1), exited(1), exited(9)},
			[]string{"chip 0 []: L1 0x0/0^10/0", "ended pid 1: 2 live 2 allocs", "  on 0: L1 1x10/0+1", "  unplaced: L1 1x3/0+1"},
		},
		"a process that closed all before it exits is remembered with its peaks": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), freed(1, device, 1), closed(1, device), gone(1, device+1), exited(1)},
			[]string{"chip 0 []: L1 0x0/0^10/0", "ended pid 1: 0 live 1 allocs 1 frees", "  on 0: L1 0x0/0^10/0"},
		},
		"another start time is another process": {
			[]Event{started(1, 5), opened(1, device, host(0)), alloc(1, device, 1, L1, 10), started(1, 6), alloc(1, device, 1, DRAM, 3)},
			[]string{"chip 0 []: L1 0x0/0^10/0", "pid 1: 1 live 1 allocs", "  unplaced: DRAM 1x3/0+1", "ended pid 1: 1 live 1 allocs", "  on 0: L1 1x10/0+1"},
		},
		"the same start time is the same process": {
			[]Event{started(1, 5), opened(1, device, host(0)), alloc(1, device, 1, L1, 10), started(1, 5)},
			[]string{"chip 0 [1]: L1 1x10/0+1", "pid 1: 1 live 1 allocs", "  on 0: L1 1x10/0+1"},
		},
		"a description that comes late changes no account": {
			[]Event{opened(1, device, host(0)), alloc(1, device, 1, L1, 10), started(1, 5)},
			[]string{"chip 0 [1]: L1 1x10/0+1", "pid 1: 1 live 1 allocs", "  on 0: L1 1x10/0+1"},
		},
	} {
		t.Run(name, func(t *testing.T) { wantAccounts(t, run(New(), c.events...), c.want...) })
	}
}
