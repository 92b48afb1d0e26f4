package ui

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/telemetry"
)

// world is a host in which things happen: real accounts, with a log, that a frame shows.
type world struct {
	*aggregator.Aggregator
	log   *Log
	time  uint64
	chips []aggregator.Chip
	next  uint64
	wall  time.Time
	// system is the host's, of a fake tree.
	system *telemetry.System
	frame  *frame
	reader reader
	meter  meter
}

const oneSecond = uint64(time.Second)

func newWorld(chips int) *world {
	w := &world{Aggregator: aggregator.New(), log: NewLog(), time: 1000 * oneSecond, wall: time.Date(2025, 1, 2, 12, 3, 11, 0, time.UTC)}
	w.FollowSites(func(s *aggregator.Stack) string { return s.Frames[0].File + " " + s.Frames[0].Function })
	w.OnChange, w.OnCBChange, w.OnAllocationFailed = w.log.Change, w.log.CBChange, func(e *aggregator.Event) { w.log.AllocationFailed(e) }
	w.OnKernelChange = func(c aggregator.KernelChange) {
		if c.Chip.Number == 0 { // their order over the chips is any
			w.log.KernelChange(c)
		}
	}
	for i := range chips {
		w.chips = append(w.chips, aggregator.Chip{Number: uint32(i)})
	}
	return w
}

func (w *world) publish(e aggregator.Event) {
	e.Time = w.time
	w.Apply(&e)
	w.log.Event(&e)
}

// id is an address that was not used before.
func (w *world) id() uint64 { w.next += 192; return 0x7f00_0000_0000 + w.next }

func (w *world) starts(pid uint32, command string, late bool) {
	w.publish(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{
		Started: uint64(pid), Command: command, Late: late, Release: "0.81.1", Library: "/usr/lib/python3/site-packages/ttnn/build/lib/libtt_metal.so"}})
}

func (w *world) begins(pid uint32, command string, chips []aggregator.Chip, late bool) (device uint64) {
	w.starts(pid, command, late)
	if len(chips) == 0 {
		return 0
	}
	device = w.id()
	var boards []string
	for range chips {
		boards = append(boards, "n300")
	}
	w.publish(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: device, Opened: &aggregator.Opened{Chips: chips, Boards: boards, Mesh: true, Arch: "wormhole_b0"}})
	w.publish(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: pid, Device: device, Allocator: device + 1, Capacity: &aggregator.Capacity{
		aggregator.DRAM: banks(12, gib-32), aggregator.L1: banks(64, 1331200), aggregator.L1Small: banks(64, 32*kib), aggregator.Trace: banks(12, 4*mib), aggregator.SystemMemory: banks(0, 0)}})
	return device
}

func (w *world) alloc(pid uint32, device uint64, m aggregator.Memory, address, perBank uint64) uint64 {
	count := map[aggregator.Memory]uint64{aggregator.DRAM: 12, aggregator.L1: 64, aggregator.L1Small: 64, aggregator.Trace: 12}[m]
	id := w.id()
	w.publish(aggregator.Event{Kind: aggregator.Alloc, PID: pid, TID: pid + 1, Device: device, Allocator: device + 1, Buffer: id, Memory: m,
		Address: address, PerBank: perBank, Size: perBank*count - perBank/4, PageSize: 2048, MemoryLayout: uint8(m) * 2})
	return id
}

func (w *world) free(pid uint32, device, buffer uint64) {
	w.publish(aggregator.Event{Kind: aggregator.Free, PID: pid, Device: device, Buffer: buffer})
}

func (w *world) program(pid uint32, device uint64, operation string, launches uint64, cbs ...aggregator.CircularBuffer) uint64 {
	id := w.id()
	for k := range 3 {
		w.publish(aggregator.Event{Kind: aggregator.KernelAdded, PID: pid, Program: id})
		w.publish(aggregator.Event{Kind: aggregator.KernelLoaded, PID: pid, Program: id, Device: device, Kernel: &aggregator.Kernel{
			ID: id + uint64(k), Name: []string{"reader_bmm_tile_layout", "writer_unary_interleaved_start_id", "bmm_large_block_zm"}[k], Hash: fmt.Sprintf("%016x", id*uint64(k+7)),
			Processor: []string{"brisc", "ncrisc", "trisc1"}[k], Bytes: uint64(1024 * (k + 1)), Sized: k < 2 || launches > 5, Cores: uint64(64 * (2 - k)), Path: "/root/.cache/tt-metal-cache/kernel.elf"}})
	}
	for i := range cbs {
		w.publish(aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Program: id, Device: device, CB: &cbs[i]})
	}
	w.publish(aggregator.Event{Kind: aggregator.ProgramNamed, PID: pid, Program: id, Operation: operation})
	if launches > 0 {
		w.publish(aggregator.Event{Kind: aggregator.Launched, PID: pid, Program: id, Count: launches})
	}
	return id
}

// launches makes a device's kernel-config ring hold n programs.
func (w *world) launches(pid uint32, device uint64, n uint64) {
	w.publish(aggregator.Event{Kind: aggregator.ConfigRingUsed, PID: pid, Device: device, ConfigRing: &aggregator.ConfigRing{ID: device + 2, Base: 0x8000, Capacity: 69 * kib, Used: n * 4 * kib, Places: n}})
}

// refused is an allocation that there is no room for.
func (w *world) refused(pid uint32, r aggregator.FailedAllocation, m aggregator.Memory) {
	w.publish(aggregator.Event{Kind: aggregator.AllocationFailed, PID: pid, TID: pid + 1, Memory: m, Failure: &r})
}

func circular(address, size uint64, x1, y1 uint16) aggregator.CircularBuffer {
	return aggregator.CircularBuffer{Call: 1, Address: address, Size: size, Ranges: []aggregator.CoreRange{{X1: x1, Y1: y1}}}
}

// busy is a host with a server on all chips, a hostile process that was attached late, and
// one that is done: a quarter of an hour of it.
func busy(chips int) *world {
	w := newWorld(chips)
	w.view(settings{})
	server := w.begins(41822, "/usr/bin/python3 serve.py --model llama-70b --port 8000", w.chips, false)
	w.pass(20 * time.Second)
	for i := range uint64(40) {
		w.alloc(41822, server, aggregator.DRAM, 32+i*8*mib, 8*mib-i%3*64*kib)
	}
	test := w.begins(50100, "/usr/bin/pytest -x tests/", w.chips[:1], false)
	w.alloc(50100, test, aggregator.DRAM, 900*mib, 64*mib)
	w.pass(3 * time.Minute)
	w.program(41822, server, "ttnn::operations::matmul::MatmulMultiCoreReuseProgramFactory", 1200,
		circular(105984, 32*kib, 7, 7), circular(105984+32*kib, 64*kib, 7, 7), circular(105984+96*kib, 16*kib, 3, 1))
	w.program(41822, server, "ttnn::operations::normalization::SoftmaxDeviceOperation", 77, circular(105984, 48*kib, 7, 3), aggregator.CircularBuffer{
		Call: 2, Address: 200 * kib, Size: 24 * kib, Kind: aggregator.Dataflow, Ranges: []aggregator.CoreRange{{X0: 2, Y0: 2, X1: 4, Y1: 3}}},
		aggregator.CircularBuffer{Call: 3, Address: 224 * kib, Size: 2 * kib, Kind: aggregator.Scratchpad, Ranges: []aggregator.CoreRange{{X0: 2, Y0: 2, X1: 2, Y1: 2}}})
	w.launches(41822, server, 9)
	w.program(41822, server, "", 0)
	w.publish(aggregator.Event{Kind: aggregator.ProcessExit, PID: 50100})
	late := w.begins(50231, hostile, w.chips[:1], false)
	w.alloc(50231, late, aggregator.L1, 1000*kib, 40*kib)
	w.publish(aggregator.Event{Kind: aggregator.Free, PID: 50231, Device: late, Buffer: 0x1234})
	w.starts(50231, hostile, true) // another build, that it had before
	top := uint64(105984 + 1331200)
	var held []uint64
	for i := range uint64(24) {
		held = append(held, w.alloc(41822, server, aggregator.L1, top-(i+1)*16*kib, 16*kib))
		w.pass(20 * time.Second)
	}
	for i := 3; i < 20; i += 4 {
		w.free(41822, server, held[i])
	}
	w.alloc(41822, server, aggregator.L1Small, top+8*kib, 2*kib)
	w.alloc(41822, server, aggregator.Trace, 1020*mib, 512*kib)
	w.publish(aggregator.Event{Kind: aggregator.Lost, Count: 1312})
	w.begins(50990, "", nil, false)
	w.pass(30 * time.Second)
	return w
}

// view makes the frame that shows the world.
func (w *world) view(o settings) *frame {
	w.frame = newFrame(o, w.data(), 0)
	w.reader = reader{feed: w, system: w.system, now: func() time.Time { return w.wall }, contents: map[processID]*processContents{}}
	return w.frame
}

func (w *world) data() data {
	s := w.Snapshot()
	s.Time = w.time
	d := data{snapshot: s, now: w.time, clock: w.wall, host: "tt-host-01", source: "live", log: w.log, marks: w.log.marked(), failures: w.log.lastFailures(), hasSystem: w.system != nil}
	if n := len(w.meter.samples); n == 0 || w.wall.After(w.meter.samples[n-1].at) {
		w.meter.add(w.wall, s)
	}
	d.rates = w.meter.rates()
	if w.system != nil {
		d.devices = w.system.Devices()
	}
	return d
}

// pass lets time pass, a second at a time, while the frame looks on.
func (w *world) pass(d time.Duration) {
	for range d / time.Second {
		w.time += oneSecond
		w.wall = w.wall.Add(time.Second)
		w.look()
	}
}

// look is what the pump does.
func (w *world) look() {
	d := w.data()
	w.frame.history.add(&d)
	w.frame.update(d, w.wall)
	w.work()
}

// work does what the view on the screen wants done.
func (w *world) work() {
	if job := w.frame.work(); job != nil {
		w.reader.begin(w.frame.data.snapshot)
		if done := job(&w.reader); done != nil {
			done()
		}
		w.reader.end(w.wall)
	}
}

// screen draws the frame on a simulated terminal.
func (w *world) screen(t testing.TB, width, height int) *testScreen {
	t.Helper()
	s := &testScreen{SimulationScreen: tcell.NewSimulationScreen(""), w: width, h: height}
	if err := s.Init(); err != nil {
		t.Fatal(err)
	}
	w.frame.SetRect(0, 0, width, height)
	w.work()
	w.frame.Draw(s)
	return s
}

func (w *world) text(t testing.TB, width, height int) string {
	s := w.screen(t, width, height)
	defer s.Fini()
	return trimmed(s.text())
}

// trimmed is text without the spaces at the ends of its lines.
func trimmed(text string) string {
	var b strings.Builder
	for l := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(l, " \n"))
		b.WriteByte('\n')
	}
	return b.String()
}

// press presses keys: runes, or names of tcell's keys in <>.
func (w *world) press(keys string) {
	for keys != "" {
		e := tcell.NewEventKey(tcell.KeyRune, []rune(keys)[0], tcell.ModNone)
		n := len(string([]rune(keys)[:1]))
		if i := strings.IndexByte(keys, '>'); keys[0] == '<' && i > 0 {
			for k, name := range tcell.KeyNames {
				if name == keys[1:i] {
					e, n = tcell.NewEventKey(k, 0, tcell.ModNone), i+1
				}
			}
		}
		keys = keys[n:]
		w.frame.key(e)
		w.work()
	}
}

// cards is a fake host with n devices of the driver, the last of them without sensors, and
// two processes that hold some.
func cards(t testing.TB, n int) *telemetry.System {
	root := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		pci := fmt.Sprintf("sys/devices/0000:%02x:00.0", i+1)
		node := fmt.Sprintf("sys/class/tenstorrent/tenstorrent!%d", i)
		for name, text := range map[string]string{
			node + "/tt_card_type": "n300", node + "/tt_aiclk": fmt.Sprint(1000 - i%3*460), node + "/tt_axiclk": "900", node + "/tt_fw_bundle_ver": "18.6.0.0",
			node + "/tt_serial": "0100014511704051", pci + "/current_link_speed": "16.0 GT/s PCIe", pci + "/current_link_width": "16",
			fmt.Sprintf("proc/driver/tenstorrent/%d/pids", i): "41822\n50990\n60001\n",
		} {
			put(name, text+"\n")
		}
		if i < n-1 || n == 1 {
			put(pci+"/hwmon/hwmon1/name", "wormhole\n")
			put(pci+"/hwmon/hwmon1/temp1_input", fmt.Sprintf("%d\n", 41000+i%7*1400))
			put(pci+"/hwmon/hwmon1/temp1_max", "75000\n")
			put(pci+"/hwmon/hwmon1/power1_input", fmt.Sprintf("%d\n", 18_000_000+i*1_000_000))
			put(pci+"/hwmon/hwmon1/in0_input", "740\n")
		}
		if err := os.Symlink(filepath.Join(root, pci), filepath.Join(root, node, "device")); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/uptime", "90000.00 1.0\n")
	for pid, name := range map[int]string{41822: "python3", 50990: "jupyter", 60001: "e\x1b[31mvil\u202e"} {
		put(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (%s) S 1 1 1 0 -1 4194560 100 0 0 0 4200 100 0 0 20 0 %d 0 8000000 1000000 51200 1 1 1\n", pid, name, pid%50))
		put(fmt.Sprintf("proc/%d/status", pid), map[bool]string{false: "State:\tS (sleeping)\n", true: "State:\tT (stopped)\n"}[pid == 50990]+"Uid:\t4000000000\t0\t0\t0\n")
		put(fmt.Sprintf("proc/%d/cgroup", pid), "0::/system.slice/docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope\n")
	}
	return telemetry.New(root)
}
