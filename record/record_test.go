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
			fill(rng, v.Field(i))
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
func TestAByteThatChanged(t *testing.T) {
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
				w.Sums, w.Ghosts, got[i].Sums, got[i].Ghosts = nil, nil, nil, nil
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
		string(recordedHeader(`{"version":99}`)): ErrVersion, string(recordedHeader(`[]`)): ErrNotRecording,
		string(recordedHeader(`{"version":1}`)): ErrDamaged,
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
		for _, b := range []block{w, {prefix{kind: eventBlock}, raw}, {prefix: prefix{kind: endBlock}}} {
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
	blocks := newBlockWriter()
	f.Fuzz(func(t *testing.T, header string, raw []byte) {
		b := block{prefix{kind: headerBlock}, []byte(header)}
		var file bytes.Buffer
		for _, b := range []block{b, {prefix{kind: eventBlock}, raw}} {
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
	for _, b := range []block{h, {prefix{kind: eventBlock}, snapshot}} {
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
	for deadline := time.Now().Add(30 * time.Second); !rotated() && !over(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a file of %d bytes is not rotated", r.written.Load())
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
	r := recorder(t, Options{Path: path, MaxBytes: 30 << 10, Keep: 3, Header: header}, accounts)
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
		f, err := os.Open(path + name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		list, err := all(f)
		if err != io.EOF {
			t.Fatal(err)
		}
		for i := range list {
			replay.Apply(&list[i])
		}
	}
	if got := fmt.Sprintf("%+v%+v", replay.Snapshot(), replay.Buffers(1)); got != want {
		t.Errorf("the last three replay to\n%s\nnot\n%s", got, want)
	}
}

// What was taken in is in the file within a second, while the recording goes on.
func TestFlushedWhileItGoesOn(t *testing.T) {
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
		if time.Since(taken) > 10*time.Second {
			t.Fatalf("%d of %d events after %v", len(got), len(want), time.Since(taken))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewRecorder(Options{Path: path, Header: func() Header { return Header{} }}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that was there: %v", err)
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
