package record

import (
	"encoding/binary"
	"reflect"
	"unsafe"

	"tt-memtrace/aggregator"
)

// field is a field of an event, beside its kind, as it is at hand.
type field struct {
	name   string
	form   string
	offset uintptr
	size   uintptr
	typ    reflect.Type
	text   bool
	object bool
}

// eventFields are the fields of an event in their order, and timeField is which
// of them is the time.
var eventFields, timeField = func() (list []field, time int) {
	for i := range root.NumField() {
		f := root.Field(i)
		name := fieldName(root, f)
		if name == "Kind" || !isRecorded(f) {
			continue
		}
		if name == "Time" {
			time = len(list)
		}
		list = append(list, field{
			name: name, form: form(f.Type), offset: f.Offset, size: f.Type.Size(), typ: f.Type,
			text: f.Type.Kind() == reflect.String, object: f.Type.Kind() == reflect.Pointer,
		})
	}
	return list, time
}()

// load is the number in a field.
func (f *field) load(e *aggregator.Event) uint64 {
	p := unsafe.Add(unsafe.Pointer(e), f.offset)
	switch f.size {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

// store puts a number into a field; what is too large loses its upper bits.
func (f *field) store(e *aggregator.Event, v uint64) {
	p := unsafe.Add(unsafe.Pointer(e), f.offset)
	switch {
	case f.typ.Kind() == reflect.Bool:
		*(*bool)(p) = v != 0
	case f.size == 1:
		*(*uint8)(p) = uint8(v)
	case f.size == 2:
		*(*uint16)(p) = uint16(v)
	case f.size == 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}

// encoder lays out the events of a block: of each its kind, a mask of the fields
// that are not as in the last event of that kind, and how they differ. Texts and
// objects are numbered, and follow when they come for the first time.
type encoder struct {
	buf      []byte
	events   uint32
	last     uint64
	prev     map[aggregator.Kind][]uint64
	time     uint64
	blobs    map[string]uint64
	object   []byte
	newBlobs [][]byte
}

func newEncoder() *encoder {
	return &encoder{prev: map[aggregator.Kind][]uint64{}, blobs: map[string]uint64{}}
}

// reset begins a block. Blocks can be read each by itself.
func (c *encoder) reset() {
	c.buf, c.events, c.last, c.time = nil, 0, 0, 0
	clear(c.blobs)
	for _, p := range c.prev {
		clear(p)
	}
}

// full says that the block is long enough.
func (c *encoder) full() bool { return len(c.buf) >= cutBytes || len(c.blobs) >= maxBlobs }

func (c *encoder) add(e *aggregator.Event) {
	prev := c.prev[e.Kind]
	if prev == nil {
		prev = make([]uint64, len(eventFields))
		c.prev[e.Kind] = prev
	}
	prev[timeField] = c.time
	var mask uint64
	var now [64]uint64
	c.newBlobs = c.newBlobs[:0]
	for i := range eventFields {
		f := &eventFields[i]
		switch {
		case f.text:
			now[i] = c.blob(*(*string)(unsafe.Add(unsafe.Pointer(e), f.offset)))
		case f.object:
			now[i] = 0
			if *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(e), f.offset)) != nil {
				v := reflect.NewAt(f.typ, unsafe.Add(unsafe.Pointer(e), f.offset)).Elem()
				c.object = put(c.object[:0], v.Elem())
				now[i] = c.blob(string(c.object))
			}
		default:
			now[i] = f.load(e)
		}
		if now[i] != prev[i] {
			mask |= 1 << i
		}
	}
	c.buf = append(c.buf, byte(e.Kind))
	c.buf = binary.AppendUvarint(c.buf, mask)
	fresh := c.newBlobs
	for i := range eventFields {
		if mask>>i&1 == 0 {
			continue
		}
		if f := &eventFields[i]; !f.text && !f.object {
			c.buf = binary.AppendVarint(c.buf, int64(now[i]-prev[i]))
		} else {
			c.buf = binary.AppendUvarint(c.buf, now[i])
			if first := uint64(len(c.blobs) - len(fresh)); now[i] > first {
				c.buf = binary.AppendUvarint(c.buf, uint64(len(fresh[0])))
				c.buf = append(c.buf, fresh[0]...)
				fresh = fresh[1:]
			}
		}
		prev[i] = now[i]
	}
	c.time, c.last = e.Time, e.Time
	c.events++
}

// blob numbers a text or an object, from 1; 0 means none.
func (c *encoder) blob(s string) uint64 {
	if s == "" {
		return 0
	}
	n, ok := c.blobs[s]
	if !ok {
		n = uint64(len(c.blobs)) + 1
		c.blobs[s] = n
		c.newBlobs = append(c.newBlobs, []byte(s))
	}
	return n
}
