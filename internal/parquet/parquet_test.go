package parquet

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	pq "github.com/parquet-go/parquet-go"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/report"
	"tt-memtrace/test/duckdb"
	"tt-memtrace/test/pinned"
	"tt-memtrace/test/rig"
)

var update = flag.Bool("update", false, "write testdata/columns.txt")

const second = uint64(time.Second)

// began is late on a day, so that recordings go on into the next.
var began = time.Date(2026, 3, 1, 23, 59, 50, 0, time.UTC)

func wall(at uint64) time.Time { return began.Add(time.Duration(at)) }

// events of a host: buffers on one and on two chips of several memories and call sites, freed,
// replaced, left to a device's close or a process's exit, or not freed; programs; failures.
func events(seed uint64) []aggregator.Event {
	random := rand.New(rand.NewPCG(seed, 9))
	var stacks []*aggregator.Stack
	for i := range uint32(3) {
		stacks = append(stacks, &aggregator.Stack{Frames: []aggregator.Frame{
			{Function: "tt::x"}, {Function: "ttnn::empty"}, {Function: "f", File: "/m.py", Line: 1 + i%2, Python: true}, {Function: "g", File: "/m.py", Line: 3, Python: true},
			{Function: "h", File: "/m.py", Line: 4, Python: true}, {Function: "main", File: fmt.Sprintf("/run%d.py", i), Line: 1, Python: true}}}) // two have one label
	}
	stacks = append(stacks, nil)
	var list []aggregator.Event
	banks := aggregator.Capacity{aggregator.DRAM: {Known: true, Count: 12, Bytes: 1 << 30}, aggregator.L1: {Known: true, Count: 64, Bytes: 1 << 20}}
	for pid := uint32(1); pid <= 3; pid++ {
		list = append(list, aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Time: second, Process: &aggregator.Process{Command: "python m.py"}})
		for device, chips := range [][]aggregator.Chip{{{Number: 0}}, {{Number: 0}, {Number: 1}}, {}} {
			d := uint64(device + 1)
			list = append(list, aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Time: second, Device: d, Opened: &aggregator.Opened{Chips: chips}},
				aggregator.Event{Kind: aggregator.AllocatorSeen, PID: pid, Time: second, Device: d, Allocator: d, Capacity: &banks})
		}
	}
	at := 2 * second
	for range 1500 {
		at += random.Uint64N(second / 50)
		pid := uint32(1 + random.IntN(3))
		e := aggregator.Event{Kind: aggregator.Free, PID: pid, Time: at, Buffer: random.Uint64N(60)}
		switch random.IntN(20) {
		case 0, 1, 2, 3, 4, 5, 6, 7, 8:
			d := 1 + random.Uint64N(3)
			e = aggregator.Event{Kind: aggregator.Alloc, PID: pid, Time: at, Buffer: e.Buffer, Device: d, Allocator: d, Memory: aggregator.Memory(random.IntN(2)), Address: random.Uint64N(1 << 20),
				Size: 1024 * (1 + random.Uint64N(3)), PerBank: random.Uint64N(3) * 1024, Stack: stacks[random.IntN(len(stacks))]}
		case 9:
			e = aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Time: at, Device: 2, Program: random.Uint64N(5) + 1,
				CB: &aggregator.CircularBuffer{Call: uint32(at), Address: 1000, Size: 64, Ranges: []aggregator.CoreRange{{X1: 3}}}}
		case 10:
			e = aggregator.Event{Kind: aggregator.ProgramNamed, PID: pid, Time: at, Program: random.Uint64N(5) + 1, Operation: "ttnn::add"}
		case 11:
			e = aggregator.Event{Kind: aggregator.ProgramGone, PID: pid, Time: at, Program: random.Uint64N(5) + 1}
		case 12:
			if random.IntN(10) == 0 {
				e = aggregator.Event{Kind: aggregator.AllocationFailed, PID: pid, Time: at, Memory: aggregator.L1, Stack: stacks[0], Failure: &aggregator.FailedAllocation{Message: "Out of Memory", PerBank: 5}}
			}
		case 13:
			if random.IntN(20) == 0 {
				e = aggregator.Event{Kind: aggregator.AllocatorGone, PID: pid, Time: at, Allocator: 2}
			}
		}
		list = append(list, e)
	}
	return append(list, aggregator.Event{Kind: aggregator.ProcessExit, PID: 2, Time: at + second})
}

// export exports events as a recording of a host, and reports on them.
func export(t *testing.T, dir, host string, list []aggregator.Event) *report.Report {
	t.Helper()
	a := aggregator.New()
	x := New(a, Options{Dir: dir, Host: host, Recording: "run", Wall: wall})
	b := report.NewBuilder(a)
	a.OnChange = func(c aggregator.Change) { x.Change(c); b.Change(c) }
	a.OnLearned = func(c aggregator.Change) { x.Learned(c); b.Learned(c) }
	a.OnCBChange = func(c aggregator.CBChange) { x.CBChange(c); b.CBChange(c) }
	a.OnAllocationFailed = func(e *aggregator.Event) { x.AllocationFailed(e); b.AllocationFailed(e) }
	for len(list) > 0 {
		n := min(100, len(list))
		for i := range list[:n] {
			a.Apply(&list[i])
			x.Event(&list[i])
			b.Event(&list[i])
		}
		list = list[n:]
	}
	facts := report.Facts{Host: host, Source: "s", Wall: wall}
	if err := x.Close(facts, true); err != nil {
		t.Fatal(err)
	}
	return b.Report(facts)
}

// Equal recordings become equal files.
func TestExportsAreReproducible(t *testing.T) {
	other := aggregator.New()
	for _, e := range events(8) {
		other.Apply(&e)
	}
	state := other.State()
	for name, events := range map[string][]aggregator.Event{
		"live at the end": events(7),
		"a state":         append(events(7), state...),
		"part of a state": append(events(7), state[:len(state)-1]...),
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for i := range 5 {
				dir := t.TempDir()
				export(t, dir, "host", events)
				list, err := filepath.Glob(filepath.Join(dir, "*", "*", "*", "*.parquet"))
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range list {
					b, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					if file = strings.TrimPrefix(file, dir); files[file] == "" {
						files[file] = string(b)
					} else if files[file] != string(b) {
						t.Fatalf("%s differs the time %d", file, i)
					}
				}
				if len(list) != len(files) || len(list) < 6 {
					t.Fatalf("%d files, not %d", len(list), len(files))
				}
			}
		})
	}
}

// queries are those of the document, by name, over the tables in dir.
func queries(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/parquet.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)```sql (\\w+)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		found[m[1]] = strings.ReplaceAll(m[2], "'fleet/", "'"+dir+"/")
	}
	return found
}

// ask runs the document's queries, and returns their rows as text.
func ask(t *testing.T, dir string, names ...string) map[string][]string {
	t.Helper()
	python, err := rig.Python(t.Context(), "3.12")
	if err != nil {
		t.Skip(err)
	}
	known := queries(t, dir)
	var asked []string
	for _, name := range names {
		if known[name] == "" {
			t.Fatalf("docs/parquet.md has no query %q", name)
		}
		asked = append(asked, known[name])
	}
	tables, err := duckdb.Query(t.Context(), python, asked...)
	if errors.Is(err, duckdb.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for i, table := range tables {
		for _, r := range table {
			line := ""
			for _, cell := range r {
				if f, ok := cell.(json.Number); ok && strings.Contains(f.String(), ".") {
					n, _ := f.Float64()
					cell = fmt.Sprintf("%.4f", n)
				}
				line += fmt.Sprint(cell, "|")
			}
			rows[names[i]] = append(rows[names[i]], line)
		}
	}
	return rows
}

// same compares rows, whatever their order.
func same(t *testing.T, name string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("%s: %d rows, not %d", name, len(got), len(want))
		for i := range max(len(got), len(want)) {
			g, w := "", ""
			if i < len(got) {
				g = got[i]
			}
			if i < len(want) {
				w = want[i]
			}
			if g != w {
				t.Fatalf("%s: the first that differs is\n%s\nnot\n%s", name, g, w)
			}
		}
	}
}

// lower is a memory's name as tables have it.
func lower(m report.MemoryName) string { return strings.ToLower(string(m)) }

// The document's SQL over thirty recordings says what the reports of them say.
func TestSQLSaysWhatReportsSay(t *testing.T) {
	dir := t.TempDir()
	want := map[string][]string{}
	var reports []*report.Report
	for i := range 30 {
		host := fmt.Sprintf("host%02d", i)
		list := events(uint64(i))
		if i%5 == 4 { // one that begins midway, and one with a state in between
			a := aggregator.New()
			half := len(list) / 2
			for j := range list[:half] {
				a.Apply(&list[j])
			}
			rest := append(a.State(), list[half:]...)
			if i%2 == 0 {
				rest = append(slices.Clone(list[:half]), rest...)
			}
			list = rest
		}
		r := export(t, dir, host, list)
		reports = append(reports, r)
		for _, m := range r.Memories {
			for _, h := range m.Holders {
				want["peaks"] = append(want["peaks"], fmt.Sprint(host, "|", m.Chip, "|", lower(m.Memory), "|", m.Peak, "|", h.PID, "|", h.Label(), "|", h.Buffers, "|", h.Bytes, "|"))
			}
		}
		var left uint64
		for _, s := range r.Left {
			left += s.Bytes
			want["left"] = append(want["left"], fmt.Sprint(host, "|", s.PID, "|", lower(s.Memory), "|", s.Label(), "|", s.Buffers, "|", s.Bytes, "|", s.AtExit, "|", s.AtClose, "|"))
		}
		for _, s := range r.Churn {
			life := "<nil>"
			if s.MeanLife != nil {
				life = fmt.Sprintf("%.4f", *s.MeanLife)
			}
			want["churn"] = append(want["churn"], fmt.Sprint(host, "|", s.PID, "|", lower(s.Memory), "|", s.Label(), "|", s.Buffers, "|", s.Bytes, "|", s.Freed, "|", life, "|"))
		}
		want["hosts"] = append(want["hosts"], fmt.Sprint(host, "|", r.Events, "|", r.Lost, "|", r.Exact, "|", left, "|", len(r.Failures), "|"))
	}
	for _, s := range report.Merge(reports, make([][]string, len(reports))).Left {
		want["sites"] = append(want["sites"], fmt.Sprint(s.Site, "|", lower(s.Memory), "|", s.Buffers, "|", s.Bytes, "|", s.Hosts, "|"))
	}
	names := []string{"peaks", "left", "churn", "sites", "hosts"}
	got := ask(t, dir, names...)
	for _, name := range names {
		same(t, name, got[name], want[name])
	}
	if days, err := filepath.Glob(filepath.Join(dir, "buffers", "host=host00", "day=2026-03-0*")); err != nil || len(days) != 2 {
		t.Errorf("the days of a recording around midnight: %v %v", days, err)
	}
}

// A row has the chips and the reserved size of its buffer, also where these became known after it was allocated.
func TestChipsAndSizesThatBecomeKnown(t *testing.T) {
	dir := t.TempDir()
	banks := aggregator.Capacity{aggregator.DRAM: {Known: true, Count: 12, Bytes: 1 << 30}}
	r := export(t, dir, "h", []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 1, Time: second, Process: &aggregator.Process{Command: "m"}},
		{Kind: aggregator.AllocatorSeen, PID: 1, Time: second, Device: 7, Allocator: 8, Capacity: &banks},
		{Kind: aggregator.Alloc, PID: 1, Time: 2 * second, Device: 7, Allocator: 8, Buffer: 1, Size: 100, PerBank: 32},
		{Kind: aggregator.Alloc, PID: 1, Time: 2 * second, Device: 7, Allocator: 8, Buffer: 2, Size: 100},
		{Kind: aggregator.DeviceOpen, PID: 1, Time: 3 * second, Device: 7, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}, {Number: 1}}}},
		{Kind: aggregator.Scanned, PID: 1, Time: 4 * second, Scan: &aggregator.Scan{Allocators: []uint64{8}, Buffers: []aggregator.LiveBuffer{
			{Buffer: 1, Device: 7, Allocator: 8, Size: 100, PerBank: 32}, {Buffer: 2, Device: 7, Allocator: 8, Size: 100, PerBank: 64}}}},
		{Kind: aggregator.Free, PID: 1, Time: 5 * second, Buffer: 1},
	})
	list := rows[Buffer](t, dir, "buffers")
	if len(list) != 2 {
		t.Fatalf("%+v", list)
	}
	for i, want := range []int64{12 * 32, 12 * 64} {
		if b := list[i]; !slices.Equal(b.Chips, []int32{0, 1}) || b.Bytes != want || b.Reserved == nil || *b.Reserved != want || *b.PerBank != want/12 {
			t.Errorf("%+v", b)
		}
	}
	if len(r.Left) != 1 || r.Left[0].Bytes != 2*12*64 || r.Exact {
		t.Errorf("exact %v, %+v", r.Exact, r.Left)
	}
}

// A recording that ends within a state has nothing live at its end, because the state would list it.
func TestARecordingThatEndsWithinAState(t *testing.T) {
	dir := t.TempDir()
	export(t, dir, "h", []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 1, Time: second, Process: &aggregator.Process{Command: "m"}},
		{Kind: aggregator.DeviceOpen, PID: 1, Time: second, Device: 7, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}},
		{Kind: aggregator.Alloc, PID: 1, Time: 2 * second, Device: 7, Allocator: 8, Buffer: 1, Size: 100},
		{Kind: aggregator.CBPlaced, PID: 1, Time: 2 * second, Device: 7, Program: 5, CB: &aggregator.CircularBuffer{Size: 64, Ranges: []aggregator.CoreRange{{}}}},
		{Kind: aggregator.StateBegin, Time: 3 * second},
	})
	at := wall(3 * second).UnixMicro()
	buffers, programs := rows[Buffer](t, dir, "buffers"), rows[ProgramBuffer](t, dir, "programs")
	if len(buffers) != 1 || buffers[0].ReleasedBy == nil || *buffers[0].ReleasedBy != byUnknown || *buffers[0].FreedAt != at {
		t.Errorf("%+v", buffers)
	}
	if len(programs) != 1 || programs[0].ReleasedAt == nil || *programs[0].ReleasedAt != at {
		t.Errorf("%+v", programs)
	}
}

// What is no UTF-8 in a process's words is replaced: readers refuse a table that has other bytes.
func TestTextsAreUTF8(t *testing.T) {
	const name = "a\xff\xfe"
	dir := t.TempDir()
	stack := &aggregator.Stack{Frames: []aggregator.Frame{{Function: name, Module: name}}}
	export(t, dir, "h", []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 1, Time: second, Process: &aggregator.Process{Command: name, Release: name}},
		{Kind: aggregator.DeviceOpen, PID: 1, Time: second, Device: 7, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}},
		{Kind: aggregator.Alloc, PID: 1, Time: 2 * second, Device: 7, Allocator: 8, Buffer: 1, Size: 100, Stack: stack},
		{Kind: aggregator.CBPlaced, PID: 1, Time: 2 * second, Device: 7, Program: 5, CB: &aggregator.CircularBuffer{Size: 64, Ranges: []aggregator.CoreRange{{}}}},
		{Kind: aggregator.ProgramNamed, PID: 1, Time: 2 * second, Program: 5, Operation: name},
		{Kind: aggregator.AllocationFailed, PID: 1, Time: 2 * second, Memory: aggregator.L1, Stack: stack, Failure: &aggregator.FailedAllocation{Message: name}},
	})
	const want = "a\ufffd"
	process, buffer, program, failure := rows[Process](t, dir, "processes")[0], rows[Buffer](t, dir, "buffers")[0], rows[ProgramBuffer](t, dir, "programs")[0], rows[Failure](t, dir, "failures")[0]
	for what, got := range map[string]*string{"command": process.Command, "release": process.Release, "site": &buffer.Site, "stack": buffer.Stack,
		"operation": program.Operation, "message": &failure.Message, "failure's site": failure.Site} {
		if got == nil || !strings.HasPrefix(*got, want) && !strings.Contains(what, "site") || !utf8.ValidString(*got) {
			t.Errorf("%s: %q", what, *got)
		}
	}
	if x := New(aggregator.New(), Options{Dir: dir, Recording: name}); x.recording != want {
		t.Errorf("recording: %q", x.recording)
	}
}

// rows are those of a table's only file.
func rows[T any](t *testing.T, dir, table string) []T {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, table, "*", "*", "*.parquet"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	list, err := pq.ReadFile[T](files[0])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Without a complete recording there are no files, and a host's name leads nowhere else.
func TestFailedExportsLeaveNoFile(t *testing.T) {
	dir := t.TempDir()
	files := func() (list []string) {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				list = append(list, path)
			}
			return err
		})
		return list
	}
	begin := func(host string) *Exporter {
		a := aggregator.New()
		x := New(a, Options{Dir: filepath.Join(dir, "out"), Host: host, Recording: "../run", Wall: wall})
		a.OnChange = x.Change
		list := events(1)
		for i := range list {
			a.Apply(&list[i])
			x.Event(&list[i])
		}
		return x
	}
	if err := begin("h").Close(report.Facts{Wall: wall}, false); err != nil || len(files()) > 0 {
		t.Errorf("%v, files %v", err, files())
	}
	x := begin("h")
	x.write(os.ErrPermission)
	if err := x.Close(report.Facts{Wall: wall}, true); !errors.Is(err, os.ErrPermission) || len(files()) > 0 {
		t.Errorf("%v, files %v", err, files())
	}
	if err := begin("../../h").Close(report.Facts{Wall: wall}, true); err != nil || len(files()) == 0 {
		t.Errorf("%v, files %v", err, files())
	}
	for _, f := range files() {
		if rest := strings.TrimPrefix(f, filepath.Join(dir, "out")+"/"); len(strings.Split(rest, "/")) != 4 {
			t.Errorf("%s is not where it belongs", f)
		}
	}
}

// A process whose PID another one has got has ended.
func TestAPIDThatIsUsedAgain(t *testing.T) {
	a := aggregator.New()
	x := New(a, Options{Dir: t.TempDir(), Recording: "run", Wall: wall})
	a.OnChange = x.Change
	var held *Buffer
	for i, e := range []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: 1, Process: &aggregator.Process{Started: 1}},
		{Kind: aggregator.DeviceOpen, PID: 1, Device: 2, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}}}},
		{Kind: aggregator.Alloc, PID: 1, Device: 2, Buffer: 3, Size: 10},
		{Kind: aggregator.ProcessStart, PID: 1, Process: &aggregator.Process{Started: 5}},
	} {
		e.Time = uint64(i + 1)
		a.Apply(&e)
		x.Event(&e)
		held = cmp.Or(x.live[bufferKey{1, 3}], held)
	}
	if held == nil || held.ReleasedBy == nil || *held.ReleasedBy != byExit {
		t.Errorf("%+v", held)
	}
	if err := x.Close(report.Facts{Wall: wall}, false); err != nil {
		t.Error(err)
	}
}

// Queries find tables and columns by name and type, and the version of the tables in a file's metadata.
func TestColumnsAreFixed(t *testing.T) {
	var columns []string
	for _, table := range []struct {
		name string
		row  any
	}{{"buffers", Buffer{}}, {"programs", ProgramBuffer{}}, {"failures", Failure{}}, {"samples", Sample{}}, {"processes", Process{}}, {"recordings", Recording{}}} {
		for _, f := range pq.SchemaOf(table.row).Fields() {
			column := table.name + "." + f.Name() + " " + strings.ToLower(f.Type().String())
			if f.Optional() {
				column += " optional"
			}
			columns = append(columns, column)
		}
	}
	pinned.Names(t, *update, "testdata/columns.txt", columns, "Queries use it: another name, type or meaning increases Schema", "An addition is free")
	dir := t.TempDir()
	export(t, dir, "h", events(1))
	files, err := filepath.Glob(filepath.Join(dir, "*", "host=h", "day=*", "*.parquet"))
	if err != nil || len(files) < 6 {
		t.Fatalf("%v %v", files, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		file, err := pq.OpenFile(f, st.Size())
		if err != nil {
			t.Fatal(err)
		}
		if version, _ := file.Lookup(schemaKey); version != strconv.Itoa(Schema) {
			t.Errorf("%s has version %q of the tables", name, version)
		}
	}
}

// No column has a name that engines reserve.
func TestColumnsNeedNoQuotes(t *testing.T) {
	reserved := strings.Fields("all and any array as asc at between both by case cast check collate column constraint create cross current date desc distinct do else " +
		"end except false fetch for foreign from full grant group having in inner into is join left like limit natural not null offset on only or order outer " +
		"partition primary range references right row rows select set some table then time timestamp to true union unique user using values when where window with")
	for _, row := range []any{Buffer{}, ProgramBuffer{}, Failure{}, Sample{}, Process{}, Recording{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(row)) {
			if name, _, _ := strings.Cut(f.Tag.Get("parquet"), ","); name != "" && slices.Contains(reserved, name) {
				t.Errorf("%T: %s", row, name)
			}
		}
	}
}
