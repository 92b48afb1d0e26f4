package e2e

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/export"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// operation is what programs.py says after one.
type operation struct {
	Name   string       `json:"name"`
	Failed string       `json:"failed"`
	CBs    []capturedCB `json:"cbs"`
}

// capturedCB is a circular buffer as the runtime's graph capture reports it.
type capturedCB struct {
	Chip    uint32      `json:"chip"`
	Address uint64      `json:"address"`
	Size    uint64      `json:"size"`
	Global  bool        `json:"global"`
	Ranges  [][4]uint16 `json:"ranges"`
}

func (c capturedCB) String() string {
	return fmt.Sprintf("chip %d %#x+%d %v global=%v", c.Chip, c.Address, c.Size, c.Ranges, c.Global)
}

func sorted(list []capturedCB) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.String())
	}
	slices.Sort(out)
	return out
}

// operations runs programs.py to the end and calls f at each stop.
func operations(t *testing.T, w *rig.Run, f func(event string, o operation)) {
	t.Helper()
	for {
		m, err := w.Next(patience)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		switch m.Event {
		case "op", "cleared", rig.EventClosed:
			var o operation
			if err := json.Unmarshal([]byte(m.Text), &o); err != nil {
				t.Fatal(err)
			}
			f(m.Event, o)
			send(t, w, "go")
		case rig.EventError:
			t.Fatal(m.Error)
		}
	}
}

func (tr *trace) programs(pid int) []aggregator.ProgramSnapshot {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.accounts.Programs(uint32(pid))
}

// placesCircularBuffers is installed, for a release that does so on mock chips.
func placesCircularBuffers(t *testing.T) *rig.Runtime {
	t.Helper()
	r := installed(t)
	if r.SlowOnly() {
		t.Skip("on mock chips this release places no circular buffers and reads no kernels")
	}
	return r
}

// The circular buffers of each operation are those that the runtime's graph
// capture reports for it in a run of its own, and the physical use of each chip
// is what counting every byte of every core gives.
func TestCircularBuffersEqualTheRuntimes(t *testing.T) {
	r := placesCircularBuffers(t)
	for _, c := range []struct {
		cluster string
		slow    bool
	}{{"n150", false}, {"t3k", false}, {"n300", true}} {
		t.Run(fmt.Sprintf("%s slow=%v", c.cluster, c.slow), func(t *testing.T) {
			if c.slow && !r.PlacesSlowly() {
				return // the mock places none there
			}
			o := rig.Options{Cluster: c.cluster, Script: rig.Programs, SlowDispatch: c.slow}
			o.Args = []string{"--capture"}
			oracle := map[string][]string{}
			operations(t, workload(t, r, o), func(event string, op operation) {
				if event == "op" && op.Failed == "" {
					oracle[op.Name] = sorted(op.CBs)
				}
			})
			if len(oracle) < 20 && c.cluster == "n150" {
				t.Errorf("only %d operations ran", len(oracle))
			}

			tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			o.Args = nil
			w := workload(t, r, o)
			seen := map[uint64]bool{}
			compared, dataflow, scratchpads := 0, 0, 0
			operations(t, w, func(event string, op operation) {
				tr.sync()
				if event != "op" {
					for _, c := range tr.snapshot().Chips {
						if c.CB.Physical.Some() || c.CB.Logical.Some() || c.CB.Circular.Some() || c.CB.Dataflow.Some() || c.CB.Programs.Some() {
							t.Errorf("%s: chip %d still has %+v", event, c.Chip.Number, c.CB)
						}
					}
					return
				}
				var got []capturedCB
				all := tr.programs(w.PID())
				for _, p := range all {
					if seen[p.ID] {
						continue
					}
					seen[p.ID] = true
					for _, cb := range p.Placed {
						switch cb.Kind {
						case aggregator.Dataflow:
							dataflow++
							continue
						case aggregator.Scratchpad:
							scratchpads++
							continue
						}
						got = append(got, tr.captured(p, cb)...)
					}
				}
				if want := oracle[op.Name]; op.Failed == "" && !slices.Equal(sorted(got), want) {
					t.Errorf("%s: circular buffers\n%v\nthe runtime says\n%v", op.Name, sorted(got), want)
				}
				compared += len(got)
				tr.bruteForce(all)
				if tr.objects().buffers > 0 {
					tr.compareDataflow(tr.reader(w.PID()), all)
					tr.compareScratchpads(tr.reader(w.PID()), all)
				}
			})
			if compared == 0 {
				t.Error("there was no circular buffer to compare")
			}
			if dataflow == 0 && tr.objects().buffers > 0 {
				t.Error("there was no dataflow buffer to compare")
			}
			if scratchpads == 0 && r.Release == rig.DefaultRelease {
				t.Error("there was no scratchpad to compare")
			}
			t.Logf("%d operations, %d circular and %d dataflow buffers, %d scratchpads", len(oracle), compared, dataflow, scratchpads)
		})
	}
}

// captured is what the runtime's graph capture says of a circular buffer. That of a program for one chip of a mesh it
// has on all of them: in 0.66.0 a matmul on eight chips is eight such programs.
func (tr *trace) captured(p aggregator.ProgramSnapshot, cb aggregator.PlacedCB) (list []capturedCB) {
	c := capturedCB{Chip: cb.Chip.Number, Address: cb.Address, Size: cb.Size, Global: cb.Kind == aggregator.GlobalCircular}
	for _, r := range cb.Ranges {
		c.Ranges = append(c.Ranges, [4]uint16{r.X0, r.Y0, r.X1, r.Y1})
	}
	slices.SortFunc(c.Ranges, func(a, b [4]uint16) int { return slices.Compare(a[:], b[:]) })
	if slices.ContainsFunc(p.Placed, func(other aggregator.PlacedCB) bool { return other.Chip != cb.Chip }) {
		return []capturedCB{c}
	}
	for _, chip := range tr.snapshot().Chips {
		c.Chip = chip.Chip.Number
		list = append(list, c)
	}
	return list
}

// grain is what L1 is handed out in at the finest, bytes.
const grain = 16

// bruteForce counts every grain of every core.
func (tr *trace) bruteForce(programs []aggregator.ProgramSnapshot) {
	tr.t.Helper()
	type core struct {
		chip aggregator.Chip
		x, y uint16
	}
	bytes := map[core][]bool{}
	logical := map[aggregator.Chip]uint64{}
	for _, p := range programs {
		for _, cb := range p.Placed {
			if cb.Kind == aggregator.GlobalCircular {
				continue
			}
			for _, r := range cb.Ranges {
				for x := r.X0; x <= r.X1; x++ {
					for y := r.Y0; y <= r.Y1; y++ {
						c := core{cb.Chip, x, y}
						if bytes[c] == nil {
							bytes[c] = make([]bool, (2<<20)/grain)
						}
						if cb.Address%grain != 0 || cb.Size%grain != 0 {
							tr.t.Fatalf("a buffer at %#x of %d bytes is finer than is counted here", cb.Address, cb.Size)
						}
						for i := cb.Address / grain; i < (cb.Address+cb.Size)/grain; i++ {
							bytes[c][i] = true
						}
						logical[cb.Chip] += cb.Size
					}
				}
			}
		}
	}
	physical := map[aggregator.Chip]uint64{}
	for c, b := range bytes {
		for _, used := range b {
			if used {
				physical[c.chip] += grain
			}
		}
	}
	for _, c := range tr.snapshot().Chips {
		if !c.CB.Physical.Is(physical[c.Chip]) || !c.CB.Logical.Is(logical[c.Chip]) {
			tr.t.Errorf("chip %d: physical %d, logical %d; counted byte by byte %d, %d",
				c.Chip.Number, c.CB.Physical, c.CB.Logical, physical[c.Chip], logical[c.Chip])
		}
	}
}

// objects is where a release keeps what the second readers below look at, taken
// from its machine code: of a ProgramImpl the std::vector of its dataflow buffers
// and that of the sizes of its configuration; of a dataflow buffer the bytes that
// say that it lies over another one, or in other memory; of a Kernel the
// std::vector of its scratchpads, how long one of these is, and the std::vector of
// its core ranges; all from the start, bytes.
type objects struct {
	buffers, aliased, borrowed uint64
	sizes                      uint64
	scratchpads, each, ranges  uint64
}

var objectsOf = map[string]objects{
	"0.66.0": {sizes: 0x320},
	"0.77.0": {0x2c0, 0xf0, 0x76, 0x678, 0x220, 0x30, 0xe8},
	"0.78.0": {0x2c0, 0xf0, 0x76, 0x678, 0x220, 0x30, 0xe8},
	"0.79.0": {0x2e0, 0xf0, 0x76, 0x780, 0x220, 0x30, 0xe8},
	"0.81.1": {0x2e0, 0xfc, 0x72, 0x770, 0x220, 0x60, 0xe8},
}

// objects are those of the release that runs.
func (tr *trace) objects() objects {
	return objectsOf[cmp.Or(os.Getenv("TT_MEMTRACE_RELEASE"), rig.DefaultRelease)]
}

// reader reads the memory of a process.
type reader struct {
	t   *testing.T
	mem *os.File
}

func (tr *trace) reader(pid int) reader {
	tr.t.Helper()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() { mem.Close() })
	return reader{tr.t, mem}
}

func (r reader) read(address uint64, size int) []byte {
	r.t.Helper()
	b := make([]byte, size)
	if _, err := r.mem.ReadAt(b, int64(address)); err != nil {
		r.t.Fatalf("reading %#x: %v", address, err)
	}
	return b
}

func (r reader) u64(address uint64) uint64 { return binary.LittleEndian.Uint64(r.read(address, 8)) }

func (r reader) u32(address uint64) uint64 {
	return uint64(binary.LittleEndian.Uint32(r.read(address, 4)))
}

// compareDataflow reads the programs' own objects, by offsets that were taken
// from the machine code of allocate_dataflow_buffers, and compares: a reader that
// shares nothing with the tracer.
func (tr *trace) compareDataflow(r reader, programs []aggregator.ProgramSnapshot) {
	t, o := tr.t, tr.objects()
	t.Helper()
	for _, p := range programs {
		var want []string
		for at, end := r.u64(p.ID+o.buffers), r.u64(p.ID+o.buffers+8); at < end; at += 16 {
			dfb := r.u64(at)
			if r.read(dfb+o.borrowed, 1)[0] == 1 || r.read(dfb+o.aliased, 1)[0] != 0 {
				continue // it borrows another's memory
			}
			size := r.u32(dfb+0x28) * r.u32(dfb+0x2c)
			for g, gend := r.u64(dfb+0x80), r.u64(dfb+0x88); g < gend; g += 72 {
				for c, cend := r.u64(g+0x30), r.u64(g+0x38); c < cend; c += 24 {
					want = append(want, fmt.Sprintf("%#x+%d on %d,%d", r.u32(c+16), size, r.u64(c), r.u64(c+8)))
				}
			}
		}
		tr.comparePlaced(p, aggregator.Dataflow, want)
	}
}

// comparePlaced compares what a program has of a kind, core by core, on each chip.
func (tr *trace) comparePlaced(p aggregator.ProgramSnapshot, kind aggregator.CBKind, want []string) {
	tr.t.Helper()
	byChip := map[aggregator.Chip][]string{}
	for _, cb := range p.Placed {
		if cb.Kind != kind {
			continue
		}
		for _, r := range cb.Ranges {
			for x := r.X0; x <= r.X1; x++ {
				for y := r.Y0; y <= r.Y1; y++ {
					byChip[cb.Chip] = append(byChip[cb.Chip], fmt.Sprintf("%#x+%d on %d,%d", cb.Address, cb.Size, x, y))
				}
			}
		}
	}
	slices.Sort(want)
	for chip, got := range byChip {
		slices.Sort(got)
		if !slices.Equal(got, want) {
			tr.t.Errorf("program %#x on chip %d: of kind %d\n%v\nits own objects say\n%v", p.ID, chip.Number, kind, got, want)
		}
	}
	if len(want) > 0 && (len(byChip) == 0 || len(p.Loaded) > 0 && len(byChip) != len(p.Loaded)) {
		tr.t.Errorf("program %#x: %d of kind %d are in the accounts of %d chips, its kernels in those of %d", p.ID, len(want), kind, len(byChip), len(p.Loaded))
	}
}

// compareScratchpads reads them from the kernels' own objects, where these keep
// their places: the tracer takes them from the kernels' arguments.
func (tr *trace) compareScratchpads(r reader, programs []aggregator.ProgramSnapshot) {
	tr.t.Helper()
	o := tr.objects()
	for _, p := range programs {
		var want []string
		seen := map[uint64]bool{}
		for _, k := range p.Kernels {
			if seen[k.ID] {
				continue // another binary of it
			}
			seen[k.ID] = true
			for at, end := r.u64(k.ID+o.scratchpads), r.u64(k.ID+o.scratchpads+8); at < end; at += o.each {
				for c, cend := r.u64(k.ID+o.ranges), r.u64(k.ID+o.ranges+8); c < cend; c += 32 {
					for x := r.u64(c); x <= r.u64(c+16); x++ {
						for y := r.u64(c + 8); y <= r.u64(c+24); y++ {
							want = append(want, fmt.Sprintf("%#x+%d on %d,%d", r.u32(at+0x28), r.u32(at+0x20), x, y))
						}
					}
				}
			}
		}
		tr.comparePlaced(p, aggregator.Scratchpad, want)
	}
}

// Programs that are cached and use the same addresses in turn take the place of
// one, however many there are; the plain sum counts them all.
func TestCachedProgramsAtTheSameAddresses(t *testing.T) {
	const programs = 30
	r := placesCircularBuffers(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	var ops []string
	for i := range programs {
		name := []string{"add", "subtract", "multiply", "maximum"}[i/8]
		places := fmt.Sprintf("%03b", i%8)
		ops = append(ops, name+"@"+strings.NewReplacer("0", "D", "1", "L").Replace(places))
	}
	w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Programs, Args: []string{"--ops", strings.Join(ops, ",")}})
	var one aggregator.CBUsage
	n := uint64(0)
	operations(t, w, func(event string, op operation) {
		tr.sync()
		got := tr.snapshot().Chips[0].CB
		if event != "op" {
			if !got.Physical.Is(0) || !got.Logical.Is(0) || !got.Programs.Is(0) {
				t.Errorf("%s: %+v", event, got)
			}
			return
		}
		if op.Failed != "" {
			t.Fatal(op.Failed)
		}
		n++
		if n == 1 {
			one = got
		}
		if !got.Programs.Is(n) || got.Physical != one.Physical || !got.Logical.Is(n*sizeOf(one.Logical)) || !one.Physical.Some() {
			t.Errorf("with %d programs: %+v; with one: %+v", n, got, one)
		}
	})
	if n != programs {
		t.Errorf("%d programs ran", n)
	}
}

// The checks of the original server's users pass on its log: each chip of a
// mesh has as many lines, and what is freed has a size.
func TestLogOfProgramsCountsTheSameOnEveryChip(t *testing.T) {
	r := placesCircularBuffers(t)
	var log bytes.Buffer
	logger := export.NewLogger(&log, false, func(uint64) time.Time { return time.Time{} })
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	tr.mu.Lock()
	tr.accounts.OnCBChange = logger.CBChange
	tr.mu.Unlock()
	w := workload(t, r, rig.Options{Cluster: "t3k", Script: rig.Programs, Args: []string{"--ops", "add,softmax,matmul,untilize"}})
	operations(t, w, func(string, operation) {})
	tr.sync()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	count := map[string]int{}
	for line := range strings.Lines(log.String()) {
		var sign, word, rest string
		var device int
		if n, err := fmt.Sscanf(line, "%s %s Device %d: %s MB", &sign, &word, &device, &rest); n != 4 {
			t.Fatalf("%q: %v", line, err)
		}
		count[fmt.Sprintf("%s of chip %d", word, device)]++
		if rest == "-0" || rest == "+0" {
			t.Errorf("no size: %s", line)
		}
	}
	first := count["[CB_ALLOC] of chip 0"]
	if len(count) != 16 || first == 0 {
		t.Errorf("lines %v", count)
	}
	for what, n := range count {
		if n != first {
			t.Errorf("%s: %d lines, not %d", what, n, first)
		}
	}
}
