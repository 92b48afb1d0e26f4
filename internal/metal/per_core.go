package metal

import (
	"fmt"
	"sync"

	"tt-memtrace/internal/x86eval"
)

// PerCore is where a library keeps the addresses of a buffer that has its own address on each of its cores, rather
// than one address in every bank.
type PerCore struct {
	// Flag is the offset of a byte in a buffer's fields, from their base: 1 if the buffer is of this kind.
	Flag uint32
	// Addresses is the offset of a std::unordered_map from cores to addresses.
	Addresses uint32
}

// MaxPerCore is the most bytes of a buffer's fields up to the end of what PerCore describes.
const MaxPerCore = 1 << 12

// oncePerCore finds out once where a library keeps these addresses.
type oncePerCore struct {
	sync.Once
	found *PerCore
	err   error
}

// PerCore returns where the library keeps these addresses; nil if it has no such buffers. The error wraps
// ErrUnsupported if it has, and its functions do not show where.
func (l *Library) PerCore() (*PerCore, error) {
	o := &l.perCore
	o.Do(func() { o.found, o.err = l.findPerCore() })
	return o.found, o.err
}

func (l *Library) findPerCore() (*PerCore, error) {
	is, ok := l.symbols[isPerCore]
	if !ok {
		return nil, nil
	}
	refuse := func(err error) (*PerCore, error) {
		return nil, fmt.Errorf("its buffers with an address on each core: %w: %w", err, ErrUnsupported)
	}
	of, ok := l.symbols[perCoreAddresses]
	if !ok {
		return refuse(fmt.Errorf("there is no %s", perCoreAddresses))
	}
	layout, err := l.Layout()
	if err != nil {
		return nil, err
	}
	image, err := l.Image()
	if err != nil {
		return refuse(err)
	}
	g := &symbolicObject{image: image}
	flag, size, err := compared(g, is.Value) // a byte that is returned does not show where it is from
	if err == nil && size != 1 {
		err = fmt.Errorf("its flag has %d bytes", size)
	}
	if err != nil {
		return refuse(err)
	}
	g.reset(false)
	value, err := g.evaluate(of.Value)
	if err != nil {
		return refuse(err)
	}
	addresses, ok := g.probe.Path(value)
	if !ok {
		return refuse(fmt.Errorf("%s returns %#x", perCoreAddresses, value))
	}
	p := &PerCore{}
	if p.Flag, err = layout.inFields(flag); err == nil {
		p.Addresses, err = layout.inFields(addresses)
	}
	if err != nil {
		return refuse(err)
	}
	return p, nil
}

// inFields returns the offset from the base of a buffer's fields to which a path from the Buffer leads.
func (l *Layout) inFields(p x86eval.Path) (uint32, error) {
	offset := p.Tail
	switch {
	case l.Indirect && len(p.Offsets) == 1 && p.Offsets[0] == int64(l.Base):
	case !l.Indirect && len(p.Offsets) == 0:
		offset -= int64(l.Base)
	default:
		return 0, fmt.Errorf("%v is not in the fields", p)
	}
	if offset < 0 || offset > MaxPerCore {
		return 0, fmt.Errorf("%v is not in the fields", p)
	}
	return uint32(offset), nil
}
