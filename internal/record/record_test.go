package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

// fill sets every field below v to something that is not its zero.
func fill(rng *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1 + rng.Uint64()>>rng.IntN(64))
		if v.Uint() == 0 {
			v.SetUint(1)
		}
	case reflect.String:
		v.SetString(fmt.Sprint("\xff\x00 ü ", rng.IntN(1000)))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(rng, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(rng, v.Index(i))
		}
	case reflect.Map:
		key := reflect.New(v.Type().Key()).Elem()
		fill(rng, key)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, reflect.Zero(v.Type().Elem()))
	case reflect.Struct:
		for i := range v.NumField() {
			if isRecorded(v.Type().Field(i)) {
				fill(rng, settable(v.Field(i)))
			}
		}
	default:
		panic("a field of kind " + v.Kind().String() + " is not recorded")
	}
}

// randomEvents has every kind, and every field in some events.
func randomEvents(seed uint64, n int) []aggregator.Event {
	rng := rand.New(rand.NewPCG(seed, 7))
	list := make([]aggregator.Event, n)
	for i := range list {
		e := &list[i]
		v := reflect.ValueOf(e).Elem()
		for f := range v.NumField() {
			if !isRecorded(v.Type().Field(f)) {
				continue
			}
			if rng.IntN(3) > 0 && (v.Field(f).Kind() != reflect.Pointer || rng.IntN(20) == 0) || i == 0 {
				fill(rng, v.Field(f))
			}
		}
		e.Kind = aggregator.Kind(1 + rng.IntN(int(aggregator.Lost)))
	}
	return list
}

func recorded(t testing.TB, events []aggregator.Event, flush int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Host: "h"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if err := w.Write(events[i : i+1]); err != nil {
			t.Fatal(err)
		}
		if flush > 0 && i%flush == flush-1 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// all reads to the end, which is an error.
func all(b io.Reader) (list []aggregator.Event, err error) {
	r, err := NewReader(b)
	for err == nil {
		var some []aggregator.Event
		some, err = r.Next()
		list = append(list, some...)
	}
	return list, err
}

// Every field of every event comes back; a field of a form that is not recorded panics here.
func TestEventsComeBackAsTheyWere(t *testing.T) {
	for seed := range uint64(20) {
		want := randomEvents(seed, 1+int(seed)*100)
		got, err := all(bytes.NewReader(recorded(t, want, int(seed)*7)))
		if err != io.EOF || len(got) != len(want) {
			t.Fatalf("seed %d: %d of %d events, %v", seed, len(got), len(want), err)
		}
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("seed %d, event %d:\n%+v\n%+v", seed, i, got[i], want[i])
			}
		}
	}
}

// step is between the bytes that are tried; all are, unless it shall be short.
func step() int {
	if testing.Short() {
		return 17
	}
	return 1
}

// A recording that is cut at any byte replays up to there: never an event that
// was not written, and none missing of the blocks that are whole.
func TestCutAnywhere(t *testing.T) {
	want := randomEvents(3, 12)
	b := recorded(t, want, 5)
	before := 0
	for n := 0; n < len(b); n += step() {
		got, err := all(bytes.NewReader(b[:n]))
		if !errors.Is(err, ErrCut) && (n > 0 || !errors.Is(err, ErrNotRecording)) {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if len(got) < before || len(got) > len(want) {
			t.Fatalf("cut at %d: %d events, at a byte less %d", n, len(got), before)
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("cut at %d: event %d is another", n, i)
			}
		}
		before = len(got)
	}
	if before != len(want) && step() == 1 {
		t.Errorf("without its last byte: %d of %d events", before, len(want))
	}
}

// A byte that changed is noticed; what is before it is read.
func TestAChangedByteIsFound(t *testing.T) {
	want := randomEvents(4, 12)
	b := recorded(t, want, 5)
	for n := 0; n < len(b); n += step() {
		damaged := bytes.Clone(b)
		damaged[n] ^= 1 << (n % 8)
		got, err := all(bytes.NewReader(damaged))
		if err == io.EOF {
			t.Fatalf("byte %d: nothing was noticed", n)
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("byte %d: event %d is another", n, i)
			}
		}
	}
}

// Fields and kinds are found by name: one that is gone is skipped, one that the
// file does not have is empty.
func TestOtherVersionsFields(t *testing.T) {
	want := randomEvents(5, 100)
	b := recorded(t, want, 10)
	var p prefix
	p.parse(b)
	header := string(b[prefixBytes : prefixBytes+p.stored])
	for _, replace := range [][2]string{
		{`["PerBank","u"]`, `["Weight","u"]`}, {`["Operation","s"]`, `["Title","s"]`}, {`["Kernel","*Kernel"]`, `["Nut","*Kernel"]`},
		{`["Chips","[]Chip"]`, `["Potatoes","[]Chip"]`}, {`["Number","u"]`, `["Count","u"]`}, {`"free"`, `"gratis"`},
	} {
		changed := strings.Replace(header, replace[0], replace[1], 1)
		if changed == header {
			t.Fatalf("no %s in %s", replace[0], header)
		}
		file := make([]byte, prefixBytes, len(b)+100)
		q := prefix{kind: headerBlock, raw: uint32(len(changed)), stored: uint32(len(changed))}
		q.put(file, []byte(changed))
		file = append(append(file, changed...), b[prefixBytes+p.stored:]...)
		got, err := all(bytes.NewReader(file))
		if err != io.EOF {
			t.Fatalf("%s: %v", replace[1], err)
		}
		i := 0
		for _, w := range want {
			switch replace[1] {
			case `"gratis"`:
				if w.Kind == aggregator.Free {
					continue
				}
			case `["Weight","u"]`:
				w.PerBank = 0
			case `["Title","s"]`:
				w.Operation = ""
			case `["Nut","*Kernel"]`:
				w.Kernel = nil
			default:
				w.Opened, w.Totals, got[i].Opened, got[i].Totals = nil, nil, nil, nil
				w.RuntimeTotals, w.StaleEntries, w.Reason, got[i].RuntimeTotals, got[i].StaleEntries, got[i].Reason = nil, nil, nil, nil, nil, nil
			}
			if !reflect.DeepEqual(got[i], w) {
				t.Fatalf("%s, event %d:\n%+v\n%+v", replace[1], i, got[i], w)
			}
			i++
		}
		if i != len(got) {
			t.Errorf("%s: %d events, not %d", replace[1], len(got), i)
		}
	}
	for file, want := range map[string]error{
		"": ErrNotRecording, "hello, this is a text of more than a few bytes": ErrNotRecording, "TTM": ErrCut,
		string(recordedHeader(`{"version":99}`)): ErrVersion, string(recordedHeader(`{"version":1}`)): ErrVersion, string(recordedHeader(`[]`)): ErrNotRecording,
		string(recordedHeader(`{"version":3}`)): ErrDamaged, string(recordedHeader(`{"version":3,"types":{"Event":[["X",""]]}}`)): ErrDamaged,
	} {
		if _, err := NewReader(strings.NewReader(file)); !errors.Is(err, want) {
			t.Errorf("%.20q: %v, not %v", file, err, want)
		}
	}
}

func recordedHeader(text string) []byte {
	file := make([]byte, prefixBytes)
	prefix{kind: headerBlock, raw: uint32(len(text)), stored: uint32(len(text))}.put(file, []byte(text))
	return append(file, text...)
}

// Recordings one behind the other are one.
func TestConcatenated(t *testing.T) {
	want := randomEvents(6, 40)
	b := append(recorded(t, want[:20], 3), recorded(t, want[20:], 4)...)
	got, err := all(bytes.NewReader(b))
	if err != io.EOF || !reflect.DeepEqual(got, want) {
		t.Errorf("%d of %d events, %v", len(got), len(want), err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(recorded(f, randomEvents(1, 4), 2), []byte{})
	f.Add(recorded(f, nil, 0), []byte{byte(aggregator.Alloc), 1, 2})
	blocks := newBlockWriter()
	f.Fuzz(func(t *testing.T, b, raw []byte) {
		got, err := all(bytes.NewReader(b))
		if err == nil {
			t.Fatal("no error at the end")
		}
		// The events behind checksum and compression, which would keep most changes away.
		w, err := headerOf(Header{})
		if err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		for _, b := range []block{w, {prefix: prefix{kind: eventBlock}, data: raw}, {prefix: prefix{kind: endBlock}}} {
			if _, err := blocks.write(&file, b); err != nil {
				t.Fatal(err)
			}
		}
		more, _ := all(&file)
		accounts := aggregator.New()
		for _, e := range append(got, more...) {
			accounts.Apply(&e)
		}
		accounts.Snapshot()
	})
}

// A layout that lies costs no more memory than one that does not.
func FuzzLayout(f *testing.F) {
	h, err := headerOf(Header{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(h.data), []byte{byte(aggregator.Alloc), 1, 2})
	f.Add(`{"version":1,"kinds":["","alloc"],"types":{"Event":[["Time","u"],["Totals","*Snapshot"]],"Snapshot":[["Chips","[]E"]],"E":[]}}`, []byte{1, 2, 1, 4, 255, 255, 3, 1})
	for _, form := range []string{"", "*", "**", "*u", "*[", "*[]", "*[]u", "*[2", "*[2]", "*[2]u", "*E", "E", "[]u", "x"} {
		f.Add(fmt.Sprintf(`{"version":1,"kinds":["","alloc"],"types":{"Event":[["Time","u"],["Opened",%q]],"E":[["F",%q]]}}`, form, form), []byte{1, 3, 1, 1, 2, 1, 1})
	}
	blocks := newBlockWriter()
	f.Fuzz(func(t *testing.T, header string, raw []byte) {
		b := block{prefix: prefix{kind: headerBlock}, data: []byte(header)}
		var file bytes.Buffer
		for _, b := range []block{b, {prefix: prefix{kind: eventBlock}, data: raw}} {
			if _, err := blocks.write(&file, b); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := all(&file); err == nil {
			t.Fatal("no error at the end")
		}
	})
}

// A small file cannot make the reader use much memory.
func TestHostileFilesAreBounded(t *testing.T) {
	snapshot := []byte{byte(aggregator.StateEnd)}
	mask := uint64(0)
	for i, f := range eventFields {
		if f.name == "Totals" {
			mask = 1 << i
		}
	}
	snapshot = appendUvarint(snapshot, mask, 1)
	processes := bytes.Repeat([]byte{0}, 1<<20)
	body := appendUvarint(nil, 0, 0, 1<<20-100) // time, chips, and very many processes
	body = append(body, processes...)
	snapshot = appendUvarint(snapshot, uint64(len(body)))
	snapshot = append(snapshot, body...)
	h, err := headerOf(Header{})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	blocks := newBlockWriter()
	for _, b := range []block{h, {prefix: prefix{kind: eventBlock}, data: snapshot}} {
		if _, err := blocks.write(&file, b); err != nil {
			t.Fatal(err)
		}
	}
	n := testing.AllocsPerRun(1, func() {
		if _, err := all(bytes.NewReader(file.Bytes())); !errors.Is(err, ErrDamaged) {
			t.Errorf("a million processes: %v", err)
		}
	})
	if n > 100000 {
		t.Errorf("%v allocations", n)
	}
}

func appendUvarint(b []byte, list ...uint64) []byte {
	for _, v := range list {
		for ; v > 127; v >>= 7 {
			b = append(b, byte(v)|128)
		}
		b = append(b, byte(v))
	}
	return b
}

func recorder(t *testing.T, o Options, accounts *aggregator.Aggregator) *Recorder {
	t.Helper()
	if o.Header == nil {
		o.Header = func() Header { return Header{Host: "h"} }
	}
	o.State = accounts.State
	r, err := NewRecorder(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// awaitOver waits until the file is rotated with the next event, unless it was before:
// what writes has a pace of its own.
func awaitOver(t *testing.T, r *Recorder, rotated func() bool) {
	t.Helper()
	over := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.over()
	}
	for deadline := time.Now().Add(time.Minute); !rotated() && !over(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a file of %d bytes is not rotated", r.fileBytes.Load())
		}
	}
}

// Each of the files that a recording was rotated into replays to the same end.
func TestRotatedFilesStandAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.ttm")
	accounts := aggregator.New()
	begun := 0 // files
	header := func() Header {
		begun++
		return Header{Host: "h"}
	}
	r := recorder(t, Options{Path: path, MaxBytes: 30 << 10, Keep: Retention{Files: 3}, Header: header}, accounts)
	rng := rand.New(rand.NewPCG(1, 1))
	take := func(e aggregator.Event) {
		r.Take([]aggregator.Event{e})
		accounts.Apply(&e)
	}
	take(aggregator.Event{Kind: aggregator.DeviceOpen, PID: 1, Device: 7, Time: 1, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{}, {Number: 1}}}})
	before := 0
	for i := range uint64(200000) {
		e := aggregator.Event{Kind: aggregator.Alloc, PID: 1, Time: i, Device: 7, Buffer: rng.Uint64N(100), Size: rng.Uint64N(1 << 30), Address: rng.Uint64N(1 << 30)}
		if i%2 == 0 {
			e = aggregator.Event{Kind: aggregator.Free, PID: 1, Time: i, Device: 7, Buffer: rng.Uint64N(100)}
		}
		pause := i%30000 == 0
		if pause {
			awaitOver(t, r, func() bool { return begun > before })
		}
		take(e)
		if pause {
			before = begun
		}
	}
	if begun < 5 {
		t.Errorf("%d files were begun, none too many", begun)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, not the newest and three more", files)
	}
	want := fmt.Sprintf("%+v%+v", accounts.Snapshot(), accounts.Buffers(1))
	replay := aggregator.New()
	for _, name := range []string{".3", ".2", ".1", ""} {
		apply(t, replay, path+name)
	}
	if got := fmt.Sprintf("%+v%+v", replay.Snapshot(), replay.Buffers(1)); got != want {
		t.Errorf("the last three replay to\n%s\nnot\n%s", got, want)
	}
}

// hung replaces a recorder's file by a pipe that is full. What it takes once it is
// drained comes behind the zeros that filled it.
func hung(t *testing.T, r *Recorder) (drain func() []byte) {
	t.Helper()
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	filled := 0
	for err == nil {
		var n int
		n, err = to.Write(make([]byte, 4096))
		filled += n
	}
	if err := to.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	r.file.Close()
	r.file = to
	return func() []byte {
		b, err := io.ReadAll(from)
		if err != nil {
			t.Error(err)
		}
		return b[filled:]
	}
}

// A disk that hangs stops nobody who records, also where files are to be rotated.
// What finds no room is counted, and a state is never in the file in part.
func TestRotationWithAHungDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.ttm")
	accounts := aggregator.New()
	r := recorder(t, Options{Path: path, MaxAge: time.Nanosecond}, accounts)
	drain := hung(t, r)
	taken := uint64(0)
	take := func(e aggregator.Event) {
		e.PID = 1
		taken++
		e.Time = taken
		r.Take([]aggregator.Event{e})
		accounts.Apply(&e)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Each name is more than a block, and all together are more than the queue takes.
		for i := range uint64(2 * maxQueue) {
			take(aggregator.Event{Kind: aggregator.KernelAdded, Program: i})
			take(aggregator.Event{Kind: aggregator.ProgramNamed, Program: i, Operation: fmt.Sprint(i, strings.Repeat("x", cutBytes))})
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("who records waits for the disk")
	}
	piped := make(chan []byte)
	go func() { piped <- drain() }()
	for since := time.Now(); ; time.Sleep(time.Millisecond) {
		take(aggregator.Event{Kind: aggregator.KernelAdded, Program: 1})
		if _, err := os.Stat(path + ".2"); err == nil {
			break
		}
		if time.Since(since) > time.Minute {
			t.Fatal("nothing was rotated when there was room again")
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%+v%+v", accounts.Snapshot(), accounts.Programs(1))
	var err error
	var begun []byte // all but the newest, in order
	for n := 1; err == nil; n++ {
		var b []byte
		b, err = os.ReadFile(fmt.Sprint(path, ".", n))
		begun = append(b, begun...)
	}
	newest, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The oldest has the header, and what followed it is in the pipe.
	header := prefixBytes + len(recordedUntil(begun))
	whole := slices.Concat(begun[:header], <-piped, begun[header:], newest)
	var told, lost uint64
	for name, file := range map[string][]byte{"the newest": newest, "all": whole} {
		list, err := all(bytes.NewReader(file))
		if err != io.EOF {
			t.Fatalf("%s: %v", name, err)
		}
		replay, state := aggregator.New(), false
		for i := range list {
			replay.Apply(&list[i])
			switch list[i].Kind {
			case aggregator.StateBegin, aggregator.StateEnd:
				state = list[i].Kind == aggregator.StateBegin
			case aggregator.Lost:
				if name == "all" {
					lost += list[i].Count
				}
				if state {
					t.Errorf("%s: something is missing of a state", name)
				}
			default:
				if !state && name == "all" {
					told++
				}
			}
		}
		if got := fmt.Sprintf("%+v%+v", replay.Snapshot(), replay.Programs(1)); got != want {
			t.Errorf("%s: it does not replay to what was there: %d bytes, not %d", name, len(got), len(want))
		}
	}
	if lost == 0 || told+lost != taken {
		t.Errorf("%d events are there and %d lost, of %d", told, lost, taken)
	}
}

// After what was lost a state follows as soon as the disk is fast enough again: no
// comparison that is recorded later has what is missing.
func TestAStateFollowsWhatWasLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.ttm")
	accounts := aggregator.New()
	r := recorder(t, Options{Path: path}, accounts)
	drain := hung(t, r)
	taken := uint64(0)
	take := func(e aggregator.Event) {
		taken++
		e.PID, e.Time = 1, taken
		r.Take([]aggregator.Event{e})
		accounts.Apply(&e)
		r.Applied()
	}
	take(aggregator.Event{Kind: aggregator.DeviceOpen, Device: 7, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 3}}}})
	for i := range uint64(2 * maxQueue) {
		take(aggregator.Event{Kind: aggregator.CBPlaced, Device: 7, Program: i, CB: &aggregator.CircularBuffer{Size: 100, Ranges: []aggregator.CoreRange{{}}}})
		take(aggregator.Event{Kind: aggregator.ProgramNamed, Program: i, Operation: fmt.Sprint(i, strings.Repeat("x", cutBytes))})
	}
	if r.Stats().Lost == 0 {
		t.Fatal("nothing was lost")
	}
	piped := make(chan []byte)
	go func() { piped <- drain() }()
	programs := make([]uint64, 2*maxQueue)
	for i := range programs {
		programs[i] = uint64(i)
	}
	stated := func() bool { r.mu.Lock(); defer r.mu.Unlock(); return !r.needState && !r.stateDue }
	for until := time.Now().Add(time.Minute); !stated(); {
		if time.Now().After(until) {
			t.Fatal("no state follows")
		}
		// All is well in the process: a comparison finds nothing wrong.
		take(aggregator.Event{Kind: aggregator.Compared, Comparison: &aggregator.Comparison{}})
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list, err := all(bytes.NewReader(append(header, <-piped...)))
	if err != io.EOF {
		t.Fatal(err)
	}
	replay := aggregator.New()
	gap := false
	for i := range list {
		replay.Apply(&list[i])
		s := replay.Snapshot()
		// From the first missing event on a replay shows that.
		if list[i].Kind == aggregator.Lost && list[i].Time != list[i-1].Time+1 {
			t.Errorf("what was lost after %d is of %d", list[i-1].Time, list[i].Time)
		}
		gap = (gap || list[i].Kind == aggregator.Lost) && list[i].Kind != aggregator.StateBegin
		if gap && s.Exact() {
			t.Fatalf("event %d, %v: exact, and the lost ones are missing", i, list[i].Kind)
		}
	}
	if got, want := replay.Snapshot(), accounts.Snapshot(); !got.Exact() || got.Chips[0].CB != want.Chips[0].CB {
		t.Errorf("%+v\nnot\n%+v", got.Chips[0].CB, want.Chips[0].CB)
	}
}

// recordedUntil is the content of the first block of a file.
func recordedUntil(file []byte) []byte {
	var p prefix
	p.parse(file)
	return file[prefixBytes : prefixBytes+p.stored]
}

// A state that is as large as a file may be does not make each batch begin a new one.
func TestAStateLargerThanAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.ttm")
	accounts := aggregator.New()
	for i := range uint64(5000) {
		accounts.Apply(&aggregator.Event{Kind: aggregator.Alloc, PID: 1, Time: 1 + i, Buffer: i * i, Size: i * 1001})
	}
	r := recorder(t, Options{Path: path, MaxBytes: 8 << 10}, accounts)
	for i := range uint64(100) { // about 75 bytes each
		e := aggregator.Event{Kind: aggregator.Alloc, PID: 1, Time: 10_000 + i, Buffer: 1 + i, Size: 1}
		r.Take([]aggregator.Event{e})
		accounts.Apply(&e)
		r.mu.Lock()
		r.cut()
		r.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(path + "*"); err != nil || len(files) != 2 {
		t.Errorf("%d files of %d bytes together, %v", len(files), r.Stats().Bytes, err)
	}
}

// What was taken in is in the file within a second, while the recording goes on.
func TestEventsAreFlushedWhileRecording(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.ttm")
	r := recorder(t, Options{Path: path}, aggregator.New())
	want := randomEvents(8, 10)
	taken := time.Now()
	r.Take(want)
	for {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := all(bytes.NewReader(b))
		if len(got) == len(want) && errors.Is(err, ErrCut) {
			break
		}
		if time.Since(taken) > time.Minute {
			t.Fatalf("%d of %d events after %v", len(got), len(want), time.Since(taken))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// A recording counts as lost what the disk was too slow for, which can be of any process.
func TestRecorderCountsItsLosses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.ttm")
	r := recorder(t, Options{Path: path}, aggregator.New())
	r.mu.Lock()
	r.dropped = missing{3, 2}
	r.mu.Unlock()
	r.Take([]aggregator.Event{{Kind: aggregator.ProcessExit, PID: 1, Time: 5}})
	r.mu.Lock()
	r.dropped = missing{4, 7}
	r.mu.Unlock()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := all(bytes.NewReader(b))
	want := []aggregator.Event{
		{Kind: aggregator.Lost, Time: 2, Count: 3, Anyone: true},
		{Kind: aggregator.ProcessExit, PID: 1, Time: 5},
		{Kind: aggregator.Lost, Time: 7, Count: 4, Anyone: true},
	}
	if err != io.EOF || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func BenchmarkEncode(b *testing.B) {
	events := randomEvents(1, 1000)
	for i := range events {
		e := &events[i]
		*e = aggregator.Event{Kind: e.Kind, PID: 1, TID: 2, Time: uint64(i) * 1000, Buffer: e.Buffer, Size: e.Size, Address: e.Address}
	}
	c := newEncoder()
	for i := 0; b.Loop(); i++ {
		c.add(&events[i%len(events)])
		if c.full() {
			c.reset()
		}
	}
}

// apply applies what a whole file has recorded.
func apply(t *testing.T, a *aggregator.Aggregator, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := all(f)
	if err != io.EOF {
		t.Fatal(err)
	}
	for i := range list {
		a.Apply(&list[i])
	}
}
