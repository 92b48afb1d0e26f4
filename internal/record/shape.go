package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"tt-memtrace/aggregator"
)

// member is a field of a type: its name and form. Forms are "u" for an unsigned
// number or a truth, "s" for a text, the name of a type, and "*F", "[]F" and "[N]F"
// of these.
type member [2]string

// root is the type that everything hangs on.
var root = reflect.TypeFor[aggregator.Event]()

// form is how values of a type are laid out.
func form(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "u"
	case reflect.String:
		return "s"
	case reflect.Pointer:
		return "*" + form(t.Elem())
	case reflect.Slice:
		return "[]" + form(t.Elem())
	case reflect.Map:
		if t.Elem().Kind() == reflect.Struct && t.Elem().NumField() == 0 {
			return "[]" + form(t.Key()) // a set
		}
	case reflect.Array:
		return "[" + strconv.Itoa(t.Len()) + "]" + form(t.Elem())
	case reflect.Struct:
		return typeName(t)
	}
	panic("record: no form for " + t.String())
}

// typesOf lists the fields of a struct and of all structs below it.
func typesOf(t reflect.Type, into map[string][]member) {
	switch t.Kind() {
	case reflect.Map:
		typesOf(t.Key(), into)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		typesOf(t.Elem(), into)
	case reflect.Struct:
		name := typeName(t)
		if into[name] != nil {
			return
		}
		into[name] = []member{}
		var list []member
		for i := range t.NumField() {
			f := t.Field(i)
			if !isRecorded(f) {
				continue
			}
			list = append(list, member{fieldName(t, f), form(f.Type)})
			typesOf(f.Type, into)
		}
		into[name] = list
	}
}

// recordedIn lists the fields of each struct in recordings: put needs them for each object.
var recordedIn = func() map[reflect.Type][]int {
	all := map[reflect.Type][]int{}
	for t := range typeNames {
		for i := range t.NumField() {
			if isRecorded(t.Field(i)) {
				all[t] = append(all[t], i)
			}
		}
	}
	return all
}()

// put appends a value in its form.
func put(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return binary.AppendUvarint(b, v.Uint())
	case reflect.String:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		return append(b, v.String()...)
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, 0)
		}
		return put(append(b, 1), v.Elem())
	case reflect.Slice:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		for i := range v.Len() {
			b = put(b, v.Index(i))
		}
	case reflect.Map:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		for i := v.MapRange(); i.Next(); {
			b = put(b, i.Key())
		}
	case reflect.Array:
		for i := range v.Len() {
			b = put(b, v.Index(i))
		}
	case reflect.Struct:
		for _, i := range recordedIn[v.Type()] {
			b = put(b, v.Field(i))
		}
	}
	return b
}

// shape is a form of a file, with the type that it is read into; nil where it is skipped.
type shape struct {
	op     byte // one of u s * [ ] and {
	typ    reflect.Type
	elem   *shape
	n      int
	fields []shapeField
}

type shapeField struct {
	*shape
	index int // in the type, -1 where it is not there
}

// shapes compiles the forms of one file.
type shapes struct {
	types map[string][]member
	made  map[string]*shape
}

// maxShapes and maxDepth bound what a file can make of its forms.
const (
	maxShapes = 1000
	maxDepth  = 24
)

var errForm = errors.New("the layout of the events makes no sense")

// compile reads a form into a shape for values of type t, which can be nil. A
// form that is not t's own, in the same way, is skipped.
func (s *shapes) compile(f string, t reflect.Type) (*shape, error) {
	key := f + " "
	if t != nil {
		key += t.String()
	}
	if made := s.made[key]; made != nil {
		return made, nil
	}
	if len(s.made) >= maxShapes || len(f) > 100 {
		return nil, errForm
	}
	sh := &shape{typ: t}
	s.made[key] = sh
	var err error
	inner := func(kind reflect.Kind) reflect.Type {
		if t == nil || t.Kind() != kind {
			sh.typ = nil
			return nil
		}
		return t.Elem()
	}
	switch {
	case f == "u" || f == "s":
		sh.op = f[0]
		if t != nil && form(t) != f {
			sh.typ = nil
		}
	case strings.HasPrefix(f, "*"):
		sh.op = '*'
		sh.elem, err = s.compile(f[1:], inner(reflect.Pointer))
	case strings.HasPrefix(f, "[]"):
		sh.op = ']'
		if t != nil && t.Kind() == reflect.Map {
			if sh.elem, err = s.compile(f[2:], t.Key()); err == nil && sh.elem.typ == nil {
				sh.typ = nil
			}
		} else {
			sh.elem, err = s.compile(f[2:], inner(reflect.Slice))
		}
	case strings.HasPrefix(f, "["):
		length, rest, ok := strings.Cut(f[1:], "]")
		if sh.n, err = strconv.Atoi(length); !ok || err != nil || sh.n < 0 || sh.n > 1024 {
			return nil, errForm
		}
		sh.op = '['
		sh.elem, err = s.compile(rest, inner(reflect.Array))
	default:
		members, ok := s.types[f]
		if !ok || len(members) > 256 {
			return nil, fmt.Errorf("%w: %q is not described", errForm, f)
		}
		sh.op = '{'
		if t != nil && t.Kind() != reflect.Struct {
			t, sh.typ = nil, nil
		}
		for _, m := range members {
			sf := shapeField{index: -1}
			var ft reflect.Type
			if t != nil {
				if sf.index = fieldNamed(t, m[0]); sf.index >= 0 {
					ft = t.Field(sf.index).Type
				}
			}
			if sf.shape, err = s.compile(m[1], ft); err != nil {
				return nil, err
			}
			if sf.typ == nil {
				sf.index = -1
			}
			sh.fields = append(sh.fields, sf)
		}
	}
	return sh, err
}

// cursor reads values. It stops at the end of its bytes, and when what it was
// made to allocate goes beyond the budget.
type cursor struct {
	b      []byte
	budget int
	failed bool
}

// blockBudget is how much memory the texts and objects of a block take at most, and
// how many steps it takes to read them.
const blockBudget = 64 << 20

func (c *cursor) fail() { c.failed, c.b = true, nil }

func (c *cursor) spend(n int) bool {
	c.budget -= n
	if c.budget < 0 {
		c.fail()
	}
	return !c.failed
}

func (c *cursor) uint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// bytes are a length and as many bytes, valid as long as the block.
func (c *cursor) bytes() []byte {
	n := c.uint()
	if n > uint64(len(c.b)) {
		c.fail()
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

// read reads a value into v, or skips it where v is not valid.
func (c *cursor) read(s *shape, v reflect.Value, depth int) {
	if depth > maxDepth || !c.spend(1) {
		c.fail()
		return
	}
	if s.typ == nil {
		v = reflect.Value{}
	}
	switch s.op {
	case 'u':
		n := c.uint()
		switch {
		case !v.IsValid():
		case v.Kind() == reflect.Bool:
			v.SetBool(n != 0)
		default:
			v.SetUint(n) // what is too large loses its upper bits
		}
	case 's':
		b := c.bytes()
		if v.IsValid() && c.spend(len(b)) {
			v.SetString(string(b))
		}
	case '*':
		if c.uint() == 0 || c.failed {
			return
		}
		var to reflect.Value
		if v.IsValid() && c.spend(int(v.Type().Elem().Size())) {
			v.Set(reflect.New(v.Type().Elem()))
			to = v.Elem()
		}
		c.read(s.elem, to, depth+1)
	case ']':
		n := c.uint()
		if n > uint64(len(c.b)) { // each takes a byte or more
			c.fail()
			return
		}
		if v.IsValid() && v.Kind() == reflect.Map {
			c.readSet(s, v, int(n), depth)
			return
		}
		if v.IsValid() && n > 0 && c.spend(int(n)*int(v.Type().Elem().Size())) {
			v.Set(reflect.MakeSlice(v.Type(), int(n), int(n)))
		}
		for i := range int(n) {
			c.element(s, v, i, depth)
		}
	case '[':
		for i := range s.n {
			c.element(s, v, i, depth)
		}
	case '{':
		for _, f := range s.fields {
			var to reflect.Value
			if v.IsValid() && f.index >= 0 {
				to = settable(v.Field(f.index))
			}
			c.read(f.shape, to, depth+1)
			if c.failed {
				return
			}
		}
	}
}

// settable makes a field settable even if it is unexported, as the fields of exact.Quantity are.
func settable(field reflect.Value) reflect.Value {
	return reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem()
}

// readSet reads a set's keys. What its memory is, is a guess on the high side.
func (c *cursor) readSet(s *shape, v reflect.Value, n, depth int) {
	if s.elem.typ == nil || !c.spend(n*4*int(v.Type().Key().Size())) {
		c.fail()
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), n))
	for range n {
		key := reflect.New(v.Type().Key()).Elem()
		c.read(s.elem, key, depth+1)
		if c.failed {
			return
		}
		v.SetMapIndex(key, reflect.Zero(v.Type().Elem()))
	}
}

func (c *cursor) element(s *shape, v reflect.Value, i, depth int) {
	var to reflect.Value
	if v.IsValid() && i < v.Len() {
		to = v.Index(i)
	}
	if !c.failed {
		c.read(s.elem, to, depth+1)
	}
}
