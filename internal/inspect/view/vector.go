package view

import (
	"errors"
	"fmt"

	"tt-memtrace/internal/x86eval"
)

// Vector evaluates a getter that returns a std::vector, and returns the vector's address.
func (v *View) Vector(m *x86eval.Machine, getter string, this uint64) (at uint64, err error) {
	if at, err = m.Alloc(24); err == nil {
		_, err = v.CallOn(m, getter, at, this)
	}
	return at, err
}

// ReadVector returns where the elements of a std::vector begin and how many there are, at most most. size is an
// element's size in bytes.
func ReadVector(m *x86eval.Machine, at, size, most uint64) (begin, count uint64, err error) {
	if begin, err = m.ReadU64(at); err != nil {
		return 0, 0, err
	}
	end, err := m.ReadU64(at + 8)
	if err != nil {
		return 0, 0, err
	}
	if end < begin || (end-begin)%size != 0 || (end-begin)/size > most {
		return 0, 0, fmt.Errorf("a vector from %#x to %#x", begin, end)
	}
	return begin, (end - begin) / size, nil
}

// ReadBytes returns the elements of a vector as bytes.
func ReadBytes(m *x86eval.Machine, at, size, most uint64) ([]byte, error) {
	begin, count, err := ReadVector(m, at, size, most)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size*count)
	return b, m.Read(begin, b)
}

// WriteVector writes a std::vector whose elements are the size bytes at an address.
func WriteVector(m *x86eval.Machine, v, at, size uint64) error {
	return errors.Join(m.WriteU64(v, at), m.WriteU64(v+8, at+size), m.WriteU64(v+16, at+size))
}

// Ints evaluates a getter that returns a std::vector<int>.
func (v *View) Ints(getter string, this, most uint64) ([]uint32, error) {
	m := v.Machine()
	defer m.Free()
	at, err := v.Vector(m, getter, this)
	if err != nil {
		return nil, err
	}
	begin, count, err := ReadVector(m, at, 4, most)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: it returned %w", getter, err)
	}
	list := make([]uint32, count)
	for i := range list {
		if list[i], err = m.ReadU32(begin + 4*uint64(i)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// VectorOf makes a std::vector whose elements are the size bytes at an address.
func VectorOf(m *x86eval.Machine, at, size uint64) (uint64, error) {
	v, err := m.Alloc(24)
	if err == nil {
		err = WriteVector(m, v, at, size)
	}
	return v, err
}
