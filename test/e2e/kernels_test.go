package e2e

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/metal"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// watcherFiles reads the runtime's own list, made for its watcher, of the files
// of each kernel that it compiled, in order. Releases before 0.70 have none, and
// compile no kernels for mock chips either.
func watcherFiles(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "generated", "watcher", "kernel_elf_paths.txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(b)) {
		number, files, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if number == "0" {
			continue // no kernel
		}
		for f := range strings.SplitSeq(files, ":") {
			list = append(list, path.Clean(f))
		}
	}
	return list
}

var metadata = regexp.MustCompile(`(?m)^- mesh_workload_set_metadata:\n    mesh_workload_id: (\d+)\n    name: (.*)$`)

// inspectorNames reads the operations from the log of the runtime's Inspector,
// where the release writes one, in order.
func inspectorNames(t *testing.T, dir string) (names []string, ok bool) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "generated", "inspector", "mesh_workloads_log.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metadata.FindAllStringSubmatch(string(b), -1) {
		names = append(names, m[2])
	}
	return names, true
}

// loadable is what debug/elf says of a file's loadable segments.
func loadable(t *testing.T, file string) uint64 {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var n uint64
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			n += p.Filesz
		}
	}
	return n
}

// classes are the operations whose class is called the same in every release.
var classes = map[string]string{
	"add": "BinaryNgDeviceOperation", "multiply": "BinaryNgDeviceOperation", "subtract": "BinaryNgDeviceOperation",
	"softmax": "SoftmaxDeviceOperation", "layer_norm": "LayerNormDeviceOperation", "rms_norm": "LayerNormDeviceOperation",
	"slice": "SliceDeviceOperation", "where": "TernaryDeviceOperation", "matmul": "MatmulDeviceOperation",
	"exp": "UnaryDeviceOperation", "typecast": "TypecastDeviceOperation", "concat": "ConcatDeviceOperation",
}

const times = 5

// The kernels of each operation's programs are the files that the runtime's
// watcher lists, with debug/elf's sizes; launches are counted exactly, names are
// those of the operations, and with the programs all is gone.
func TestKernelsEqualTheRuntimes(t *testing.T) {
	r := placesCircularBuffers(t) // nor does it read kernels
	for _, c := range []struct {
		cluster string
		slow    bool
	}{{"n150", false}, {"t3k", false}, {"n300", true}} {
		name := c.cluster
		if c.slow {
			name += " slow"
		}
		t.Run(name, func(t *testing.T) {
			if c.slow && !r.PlacesSlowly() {
				t.Skip("there the mock compiles no program in slow dispatch")
			}
			tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
			w := workload(t, r, rig.Options{Cluster: c.cluster, SlowDispatch: c.slow, Script: rig.Programs,
				Args: []string{"--times", strconv.Itoa(times)}})
			before := map[uint64]aggregator.ProgramSnapshot{}
			listed, named, binaries, launched, rings := 0, 0, 0, 0, 0
			operations(t, w, func(event string, op operation) {
				tr.sync()
				all := tr.programs(w.PID())
				if event != "op" {
					if len(all) > 0 {
						t.Errorf("%s: there still are the programs %+v", event, all)
					}
					for _, c := range tr.snapshot().Chips {
						if c.Kernel != aggregator.EmptyKernelUsage() {
							t.Errorf("%s: chip %d still has %+v", event, c.Chip.Number, c.Kernel)
						}
					}
					return
				}
				files := watcherFiles(t, w.Dir)
				want := files[listed:]
				listed = len(files)
				names, logged := inspectorNames(t, w.Dir)
				wantNames := names[min(named, len(names)):]
				named = len(names)

				var got, gotNames []string
				total := uint64(0)
				for _, p := range all {
					old, ok := before[p.ID]
					before[p.ID] = p
					delta := p.Launches.WithoutBound() - old.Launches.WithoutBound()
					total += delta
					if delta != 0 && delta != times {
						t.Errorf("%s: %s was launched %d times", op.Name, p.Operation, delta)
					}
					if ok {
						continue
					}
					gotNames = append(gotNames, p.Operation)
					if class := classes[op.Name]; class != "" && delta == times && p.Operation != class {
						t.Errorf("%s: its program is of %q, not of %s", op.Name, p.Operation, class)
					}
					if len(p.Kernels) > 0 && len(p.Loaded) == 0 {
						t.Errorf("%s: the kernels of its program are on no chip", op.Name)
					}
					for _, k := range p.Kernels {
						got = append(got, path.Clean(k.Path))
						if n := loadable(t, k.Path); !k.Sized || k.Bytes != n || n == 0 {
							t.Errorf("%s: %s is of %d bytes (known: %v), of which %d are loadable", op.Name, k.Path, k.Bytes, k.Sized, n)
						}
						if k.Type != aggregator.ApplicationKernel || k.Name == "" || k.Processor == "" {
							t.Errorf("%s: %s is the %v kernel %q for %q", op.Name, k.Path, k.Type, k.Name, k.Processor)
						}
					}
				}
				// A workload can have a program for each chip.
				if op.Failed == "" && classes[op.Name] != "" && total != times && (c.cluster == "n150" || total != uint64(8*times)) {
					t.Errorf("%s: %d launches", op.Name, total)
				}
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("%s: kernels\n%v\nthe runtime lists\n%v", op.Name, got, want)
				}
				slices.Sort(gotNames)
				slices.Sort(wantNames)
				if c.cluster != "n150" { // its name is logged once
					gotNames, wantNames = slices.Compact(gotNames), slices.Compact(wantNames)
				}
				if logged && !slices.Equal(gotNames, wantNames) {
					t.Errorf("%s: names %q, the runtime logs %q", op.Name, gotNames, wantNames)
				}
				binaries += len(got)
				launched += int(total)
				tr.sumOfKernels(all)
				tr.compareCores(tr.reader(w.PID()), all)
				if tr.objects().sizes > 0 && !c.slow {
					rings += tr.compareRings(tr.reader(w.PID()), all)
				}
			})
			if launched < 10*times || binaries == 0 && r.ReadsKernels() {
				t.Errorf("there were %d binaries and %d launches to compare", binaries, launched)
			}
			if rings == 0 && tr.objects().sizes > 0 && !c.slow {
				t.Error("there was no kernel-config ring to compare")
			}
			t.Logf("%d programs, %d binaries, %d launches, %d rings compared", len(before), binaries, launched, rings)
			tr.noneLost()
		})
	}
}

// noneLost checks the kernel's counters.
func (tr *trace) noneLost() {
	tr.t.Helper()
	k, err := tr.tracer.Counters()
	if err != nil {
		tr.t.Fatal(err)
	}
	for kind := range k.Seen {
		if k.Unread[kind] > 0 || k.Lost[kind] > 0 {
			tr.t.Errorf("kind %d: %d unread, %d lost of %d", kind, k.Unread[kind], k.Lost[kind], k.Seen[kind])
		}
	}
	if k.Clipped > 0 || k.Uncounted > 0 {
		tr.t.Errorf("%d texts clipped, %d launches not counted", k.Clipped, k.Uncounted)
	}
}

// sumOfKernels checks that each chip has the sum of its programs.
func (tr *trace) sumOfKernels(all []aggregator.ProgramSnapshot) {
	tr.t.Helper()
	type sum struct {
		programs, bytes, onCores uint64
		binaries                 [aggregator.NumKernelTypes]uint64
	}
	want := map[aggregator.Chip]sum{}
	for _, p := range all {
		for _, c := range p.Loaded {
			u := want[c]
			u.programs++
			for _, k := range p.Kernels {
				u.binaries[k.Type]++
				u.bytes += k.Bytes
				if k.Sized {
					u.onCores += k.Bytes * k.Cores
				}
			}
			want[c] = u
		}
	}
	for _, c := range tr.snapshot().Chips {
		k := &c.Kernel
		got := sum{sizeOf(k.Programs), sizeOf(k.Bytes), sizeOf(k.OnCores), [aggregator.NumKernelTypes]uint64{}}
		for t, n := range k.Binaries {
			got.binaries[t] = sizeOf(n)
		}
		if got != want[c.Chip] {
			tr.t.Errorf("chip %d: %+v, its programs have %+v", c.Chip.Number, c.Kernel, want[c.Chip])
		}
	}
}

// compareCores reads the core ranges of kernels from their own objects, by offsets: the
// tracer evaluates a getter. Releases whose offsets are not noted are left to TestKernelsOnGivenCores.
func (tr *trace) compareCores(r reader, all []aggregator.ProgramSnapshot) {
	tr.t.Helper()
	o := tr.objects()
	for _, p := range all {
		for _, k := range p.Kernels {
			if k.Cores == 0 {
				tr.t.Errorf("program %#x: the cores of %s are not known", p.ID, k.Path)
			}
			if o.ranges == 0 {
				continue
			}
			want := uint64(0)
			for c, end := r.u64(k.ID+o.ranges), r.u64(k.ID+o.ranges+8); c < end; c += 32 {
				want += (r.u64(c+16) - r.u64(c) + 1) * (r.u64(c+24) - r.u64(c+8) + 1)
			}
			if k.Cores != want {
				tr.t.Errorf("program %#x: %s is on %d cores, its object says %d", p.ID, k.Path, k.Cores, want)
			}
		}
	}
}

// A program that is made from a description has the kernels on the cores that it names.
func TestKernelsOnGivenCores(t *testing.T) {
	r := placesCircularBuffers(t)
	if !r.ReadsKernels() {
		t.Skip("on mock chips this release reads no kernels")
	}
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "t3k", Script: rig.Programs, Args: []string{"--times", "1", "--ops", "generic"}})
	compared := 0
	operations(t, w, func(event string, op operation) {
		if event != "op" {
			return
		}
		if strings.Contains(op.Failed, "no attribute") {
			t.Skip("this release makes no programs from descriptions")
		}
		tr.sync()
		for _, p := range tr.programs(w.PID()) {
			for _, k := range p.Kernels {
				want := uint64(7)
				if strings.HasPrefix(k.Processor, "trisc") {
					want = 11
				}
				if k.Cores != want {
					t.Errorf("%s of %s is on %d cores, not %d", k.Processor, k.Name, k.Cores, want)
				}
				compared++
			}
		}
		tr.sumOfKernels(tr.programs(w.PID()))
	})
	if compared < 4 {
		t.Errorf("there were %d binaries to compare", compared)
	}
}

// A second run of a cached program changes nothing but the launches.
func TestCachedProgramOnlyCountsLaunches(t *testing.T) {
	r := installed(t)
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "t3k", Script: rig.Programs,
		Args: []string{"--times", strconv.Itoa(times), "--ops", "softmax,softmax,add,softmax"}})
	var first []aggregator.ProgramSnapshot
	n := 0
	operations(t, w, func(event string, op operation) {
		tr.sync()
		all := tr.programs(w.PID())
		if event != "op" {
			return
		}
		n++
		if n == 1 {
			first = all
			return
		}
		if op.Name != "softmax" {
			return
		}
		runs := uint64(2)
		if n == 4 {
			runs = 3
		}
		for _, p := range first {
			i := slices.IndexFunc(all, func(q aggregator.ProgramSnapshot) bool { return q.ID == p.ID })
			if i < 0 {
				t.Fatalf("the program %#x is gone", p.ID)
			}
			q := all[i]
			if !p.Launches.Is(times) || !q.Launches.Is(runs*times) || q.LastLaunch <= p.LastLaunch {
				t.Errorf("run %d: %d launches, the last at %d; in the first run %d, at %d", n, q.Launches, q.LastLaunch, p.Launches, p.LastLaunch)
			}
			q.Launches, q.LastLaunch = p.Launches, p.LastLaunch
			if !equalPrograms(p, q) {
				t.Errorf("run %d: the program changed:\n%+v\n%+v", n, p, q)
			}
		}
		if n == 2 && len(all) != len(first) {
			t.Errorf("%d programs became %d", len(first), len(all))
		}
	})
	if n != 4 || len(first) == 0 {
		t.Errorf("%d operations, %d programs", n, len(first))
	}
}

func equalPrograms(p, q aggregator.ProgramSnapshot) bool {
	return p.ID == q.ID && p.Since == q.Since && p.Operation == q.Operation && p.KernelCount == q.KernelCount &&
		slices.Equal(p.Kernels, q.Kernels) && slices.Equal(p.Loaded, q.Loaded) && p.Launches == q.Launches && p.LastLaunch == q.LastLaunch &&
		slices.EqualFunc(p.Placed, q.Placed, func(a, b aggregator.PlacedCB) bool {
			return a.Chip == b.Chip && a.Address == b.Address && a.Size == b.Size && a.Kind == b.Kind && slices.Equal(a.Ranges, b.Ranges)
		})
}

// The names that are taken from the functions that launch the operations are
// those that the runtime gives to its Inspector, where it still does.
func TestNamesFromLaunchers(t *testing.T) {
	r := installed(t)
	points := metal.Points
	t.Cleanup(func() { metal.Points = points })
	metal.Points = slices.DeleteFunc(slices.Clone(points), func(p metal.Point) bool { return p.Name == "workload named" })
	tr := start(t, tracer.Options{Follow: uint32(os.Getpid())})
	w := workload(t, r, rig.Options{Cluster: "n150", Script: rig.Programs})
	named, compared := 0, 0
	seen := map[uint64]bool{}
	operations(t, w, func(event string, op operation) {
		if event != "op" {
			return
		}
		tr.sync()
		var got []string
		for _, p := range tr.programs(w.PID()) {
			if seen[p.ID] {
				continue
			}
			seen[p.ID] = true
			got = append(got, p.Operation)
			if p.Operation == "" {
				t.Errorf("%s: a program has no name", op.Name)
			}
		}
		names, logged := inspectorNames(t, w.Dir)
		if !logged {
			return
		}
		want := names[named:]
		named = len(names)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: names %q, the runtime logs %q", op.Name, got, want)
		}
		compared += len(got)
	})
	t.Logf("%d names, %d compared", len(seen), compared)
	if len(seen) < 10 {
		t.Errorf("only %d programs were there", len(seen))
	}
}

// compareRings compares what programs take of the kernel-config ring with the
// sizes in their own objects, and the kernel-config rings with the runtime's account of them, by
// the offsets that the machine code of WorkerConfigBufferMgr has in every release.
func (tr *trace) compareRings(r reader, programs []aggregator.ProgramSnapshot) (compared int) {
	t := tr.t
	t.Helper()
	for _, p := range programs {
		if want := r.u32(r.u64(p.ID + tr.objects().sizes)); p.Launches.Some() && !p.Config.Is(want) {
			t.Errorf("%s takes %d bytes of the ring; its object says %d", p.Operation, p.Config, want)
		}
	}
	chips := tr.snapshot().Chips
	for _, c := range chips {
		ring := c.ConfigRing
		if ring.ID == 0 {
			t.Errorf("chip %d has no kernel-config ring", c.Chip.Number)
			continue
		}
		compared++
		if ring != chips[0].ConfigRing {
			t.Errorf("chip %d has the ring %+v, chip %d %+v", c.Chip.Number, ring, chips[0].Chip.Number, chips[0].ConfigRing)
		}
		first, next := r.u32(r.u64(ring.ID+0x60)), r.u32(r.u64(ring.ID+0x48))
		base, end, used, n := r.u32(r.u64(ring.ID)), r.u32(r.u64(ring.ID+0x18)), uint64(0), uint64(0)
		for ; first != next; first = (first + 1) % 8 {
			used += r.u32(r.u64(r.u64(ring.ID+0x30)+24*first) + 4)
			n++
		}
		want := aggregator.ConfigRing{ID: ring.ID, Base: base, Capacity: end - base, Used: used, Places: n}
		if used == 0 || ring != want.Usage() {
			t.Errorf("chip %d: ring %+v; the runtime's is from %d to %d and has %d bytes of %d places in use", c.Chip.Number, ring, base, end, used, n)
		}
		// Behind it lies what programs place.
		for _, p := range programs {
			for _, cb := range p.Placed {
				if cb.Kind != aggregator.GlobalCircular && cb.Address < end {
					t.Errorf("a buffer at %#x lies in the ring, %+v", cb.Address, ring)
				}
			}
		}
	}
	return compared
}
