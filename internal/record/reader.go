package record

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"tt-memtrace/aggregator"
)

// batch is the number of events decoded at a time.
const batch = 4096

// Reader reads a recording, or several one after the other, from a stream. It
// is not safe for concurrent use.
type Reader struct {
	from   io.Reader
	zstd   *zstd.Decoder
	header Header
	at     int64
	stored []byte
	raw    []byte
	end    bool
	events []aggregator.Event
	block  decoder
	layout layout
	// Unknown counts events of kinds that this program does not know.
	Unknown uint64
}

// NewReader reads the header of the first recording.
func NewReader(from io.Reader) (*Reader, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("making a decoder: %w", err)
	}
	r := &Reader{from: from, zstd: z}
	p, err := r.next()
	if err == nil && p.kind != headerBlock {
		err = ErrNotRecording
	}
	if err == io.EOF {
		err = ErrNotRecording
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Header is that of the recording that the newest events are from.
func (r *Reader) Header() *Header { return &r.header }

// Next returns the next events, valid until the next call. The end of a state is
// the last of its batch. After the last event it returns io.EOF if the recording was
// closed, an error that wraps ErrCut or ErrDamaged, or the stream's own.
func (r *Reader) Next() ([]aggregator.Event, error) {
	for {
		r.events = r.events[:0]
		if err := r.block.some(r); err != nil {
			return nil, err
		}
		if len(r.events) > 0 {
			return r.events, nil
		}
		if _, err := r.next(); err != nil {
			return nil, err
		}
	}
}

// next reads and takes one block.
func (r *Reader) next() (prefix, error) {
	var p prefix
	var head [prefixBytes]byte
	n, err := io.ReadFull(r.from, head[:])
	switch {
	case err == io.EOF && r.end:
		return p, io.EOF
	case err == io.EOF && r.at > 0 || err == io.ErrUnexpectedEOF && r.begins(head[:n]):
		return p, r.cut()
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return p, ErrNotRecording
	case err != nil:
		return p, fmt.Errorf("reading the recording: %w", err)
	}
	sum, ok := p.parse(head[:])
	if !ok {
		if r.at == 0 {
			return p, ErrNotRecording
		}
		return p, r.damaged("no block begins here")
	}
	r.stored = slices.Grow(r.stored[:0], int(p.stored))[:p.stored]
	if _, err := io.ReadFull(r.from, r.stored); err == io.EOF || err == io.ErrUnexpectedEOF {
		return p, r.cut()
	} else if err != nil {
		return p, fmt.Errorf("reading the recording: %w", err)
	}
	if checksum(head[:], r.stored) != sum {
		return p, r.damaged("checksum mismatch")
	}
	if err := r.take(p); err != nil {
		return p, err
	}
	r.at += prefixBytes + int64(p.stored)
	return p, nil
}

// begins reports whether b is the beginning of a block.
func (r *Reader) begins(b []byte) bool {
	n := min(len(b), len(blockMagic))
	return string(b[:n]) == string(blockMagic[:n])
}

func (r *Reader) cut() error { return fmt.Errorf("%w: it ends after byte %d", ErrCut, r.at) }

func (r *Reader) damaged(why string) error {
	return fmt.Errorf("%w at byte %d: %s", ErrDamaged, r.at, why)
}

func (r *Reader) take(p prefix) error {
	first := r.at == 0
	switch {
	case first != (p.kind == headerBlock) && !(r.end && p.kind == headerBlock):
		return r.damaged("a block is out of order")
	case p.kind == headerBlock:
		r.end = false
		return r.describe(r.stored)
	case p.kind == endBlock:
		r.end = true
		return nil
	case p.kind != eventBlock:
		return r.damaged("a block of unknown kind")
	}
	raw, err := r.zstd.DecodeAll(r.stored, slices.Grow(r.raw[:0], int(p.raw)))
	if err != nil || len(raw) != int(p.raw) {
		return r.damaged("a block cannot be decompressed")
	}
	r.raw = raw
	r.block.begin(&r.layout, raw)
	return nil
}

// describe reads a header.
func (r *Reader) describe(b []byte) error {
	var v struct {
		Version int
		Tool    string
	}
	if json.Unmarshal(b, &v) != nil || v.Version < 1 {
		return fmt.Errorf("%w: its header is invalid", ErrNotRecording)
	}
	if v.Version != Version {
		return fmt.Errorf("%w: version %d, written by tt-memtrace %q; this tt-memtrace reads version %d", ErrVersion, v.Version, v.Tool, Version)
	}
	r.header = Header{}
	if err := json.Unmarshal(b, &r.header); err != nil {
		return r.damaged("its header is invalid")
	}
	if err := r.layout.compile(&r.header); err != nil {
		return r.damaged(err.Error())
	}
	return nil
}

// layout is the layout of a file's events.
type layout struct {
	fields []layoutField
	time   int
	kinds  [256]aggregator.Kind
}

type layoutField struct {
	*field        // nil where it is skipped
	blob   bool   // a text or an object
	text   bool   // a text
	shape  *shape // of an object
}

func (l *layout) compile(h *Header) error {
	members := h.Types[typeName(root)]
	if len(members) == 0 || len(members) > 64 || len(h.Kinds) > 256 {
		return errForm
	}
	*l = layout{time: -1}
	for n, name := range h.Kinds {
		for k := aggregator.Kind(1); k <= aggregator.Lost; k++ {
			if name != "" && name == k.String() {
				l.kinds[n] = k
			}
		}
	}
	s := &shapes{types: h.Types, made: map[string]*shape{}}
	for _, m := range members {
		if m[0] == "Kind" {
			continue // it has its own byte
		}
		lf := layoutField{blob: m[1] != "u", text: m[1] == "s"}
		for i := range eventFields {
			if f := &eventFields[i]; f.name == m[0] && f.form == m[1] {
				lf.field = f
			}
		}
		if m[0] == "Time" && m[1] == "u" {
			l.time = len(l.fields)
		}
		if lf.blob && !lf.text {
			object, ok := strings.CutPrefix(m[1], "*")
			if !ok {
				return errForm
			}
			var t reflect.Type
			if lf.field != nil {
				t = lf.typ.Elem()
			}
			var err error
			if lf.shape, err = s.compile(object, t); err != nil {
				return err
			}
			if lf.shape.typ == nil {
				lf.field = nil
			}
		}
		l.fields = append(l.fields, lf)
	}
	if l.time < 0 {
		return errForm
	}
	return nil
}

// decoder reads the events of one block.
type decoder struct {
	layout *layout
	cursor cursor
	prev   [256][]uint64
	time   uint64
	blobs  []value
}

// value is a text or an object of a block, decoded when first used.
type value struct {
	raw    []byte
	text   string
	object unsafe.Pointer
	typ    reflect.Type
}

func (d *decoder) begin(l *layout, raw []byte) {
	d.layout, d.cursor, d.time = l, cursor{b: raw, budget: blockBudget}, 0
	clear(d.blobs)
	d.blobs = d.blobs[:0]
	for i := range d.prev {
		d.prev[i] = nil
	}
}

// some decodes up to a batch of events.
func (d *decoder) some(r *Reader) error {
	for len(d.cursor.b) > 0 && len(r.events) < batch {
		var e aggregator.Event
		known := d.event(&e)
		if d.cursor.failed {
			if len(r.events) > 0 {
				return nil // return the events before it first
			}
			return r.damaged("an event is invalid")
		}
		if !known {
			r.Unknown++
			continue
		}
		r.events = append(r.events, e)
		if e.Kind == aggregator.StateEnd {
			return nil // sinks look at the whole state before further events are applied
		}
	}
	if d.cursor.failed && len(r.events) == 0 {
		return r.damaged("an event is invalid")
	}
	return nil
}

// event decodes one event, and says whether its kind is known.
func (d *decoder) event(e *aggregator.Event) bool {
	c := &d.cursor
	kind := c.b[0]
	c.b = c.b[1:]
	e.Kind = d.layout.kinds[kind]
	prev := d.prev[kind]
	if prev == nil {
		if !c.spend(8 * len(d.layout.fields)) {
			return false
		}
		prev = make([]uint64, len(d.layout.fields))
		d.prev[kind] = prev
	}
	prev[d.layout.time] = d.time
	mask := c.uint()
	if mask>>len(d.layout.fields) != 0 {
		c.fail()
	}
	for i := range d.layout.fields {
		f := &d.layout.fields[i]
		if c.failed {
			return false
		}
		if mask>>i&1 != 0 {
			if !f.blob {
				v := c.uint()
				prev[i] += v>>1 ^ -(v & 1)
			} else {
				prev[i] = c.uint()
				if prev[i] == uint64(len(d.blobs))+1 && len(d.blobs) < 2*maxBlobs {
					d.blobs = append(d.blobs, value{raw: c.bytes()})
				}
				if prev[i] > uint64(len(d.blobs)) {
					c.fail()
					return false
				}
			}
		}
		switch {
		case f.field == nil:
		case !f.blob:
			f.store(e, prev[i])
		case prev[i] > 0:
			d.put(e, f, &d.blobs[prev[i]-1])
		}
	}
	d.time = prev[d.layout.time]
	return e.Kind != 0
}

// put stores a text or an object in an event. Events share objects, which are never
// modified.
func (d *decoder) put(e *aggregator.Event, f *layoutField, v *value) {
	at := unsafe.Add(unsafe.Pointer(e), f.offset)
	if f.text {
		if v.text == "" && d.cursor.spend(len(v.raw)) {
			v.text = string(v.raw)
		}
		*(*string)(at) = v.text
		return
	}
	if v.typ != f.typ {
		if !d.cursor.spend(int(f.typ.Elem().Size())) {
			return
		}
		object := reflect.New(f.typ.Elem())
		inner := cursor{b: v.raw, budget: d.cursor.budget}
		inner.read(f.shape, object.Elem(), 0)
		if d.cursor.budget = inner.budget; inner.failed {
			d.cursor.fail()
			return
		}
		v.typ, v.object = f.typ, object.UnsafePointer()
	}
	*(*unsafe.Pointer)(at) = v.object
}
