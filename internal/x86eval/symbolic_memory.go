package x86eval

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// SymbolicMemory is a Memory of objects that do not exist. Each distinct load from one
// yields a distinct value, which is itself the address of such an object. From
// what a getter returns follows which fields it went through.
//
// Loads of less than four bytes yield zero, for there is little room to be
// distinct in; see Set and Loads.
type SymbolicMemory struct {
	code   Memory
	nodes  []node
	byLoad map[symbolicLoad]int
	fixed  map[uint64]byte
	loads  []Load
}

type symbolicLoad struct {
	parent int
	offset int64
	size   int
}

// node is an object: where it was loaded from, or a root.
type node struct {
	parent int // or -1
	offset int64
}

// Load is one load from a SymbolicMemory.
type Load struct {
	Path Path // of the address: its Tail is the offset of the field
	Size int
}

// Path says how a value came about: starting from an object handed out by Root,
// a load at each offset in turn, and finally Tail added.
type Path struct {
	Root    uint64
	Offsets []int64
	Tail    int64
}

// Fake objects are 1 MiB apart and addressed by their middle, since fields may
// lie before the pointer. Half of an address still identifies the object.
const (
	probeBase  = 0x5a00_0000_0000
	probeShift = 20
	probeSpan  = 1 << probeShift
	probeMax   = 1<<(32-probeShift) - 1
)

// NewSymbolicMemory returns a SymbolicMemory which takes code and constants from code.
func NewSymbolicMemory(code Memory) *SymbolicMemory {
	return &SymbolicMemory{code: code, byLoad: map[symbolicLoad]int{}, fixed: map[uint64]byte{}}
}

func nodeAddr(id int) uint64 { return probeBase + uint64(id+1)<<probeShift - probeSpan/2 }

// locate is the inverse of nodeAddr: the object around an address.
func (p *SymbolicMemory) locate(addr uint64) (id int, offset int64, ok bool) {
	if addr < probeBase {
		return 0, 0, false
	}
	n := (addr - probeBase) >> probeShift
	if n >= uint64(len(p.nodes)) {
		return 0, 0, false
	}
	return int(n), int64(addr - nodeAddr(int(n))), true
}

func (p *SymbolicMemory) addNode(n node) (int, error) {
	if len(p.nodes) >= probeMax {
		return 0, fmt.Errorf("probing: %w", ErrLimit)
	}
	p.nodes = append(p.nodes, n)
	return len(p.nodes) - 1, nil
}

// Root is the address of a new object, to be passed to the code under test. It
// is zero if there are too many.
func (p *SymbolicMemory) Root() uint64 {
	id, err := p.addNode(node{parent: -1})
	if err != nil {
		return 0
	}
	return nodeAddr(id)
}

func (p *SymbolicMemory) load(id int, offset int64, size int) (uint64, error) {
	key := symbolicLoad{id, offset, size}
	child, ok := p.byLoad[key]
	if !ok {
		var err error
		if child, err = p.addNode(node{parent: id, offset: offset}); err != nil {
			return 0, err
		}
		p.byLoad[key] = child
	}
	return nodeAddr(child), nil
}

// Child is the pointer that a load at addr, an object's address plus an offset,
// yields. It is zero if addr is not in an object.
func (p *SymbolicMemory) Child(addr uint64) uint64 {
	id, offset, ok := p.locate(addr)
	if !ok {
		return 0
	}
	v, err := p.load(id, offset, 8)
	if err != nil {
		return 0
	}
	return v
}

// Set gives the memory of an object definite bytes, say to have the code take
// another branch. A load must be of set bytes entirely to yield them.
func (p *SymbolicMemory) Set(addr uint64, b ...byte) {
	for i, v := range b {
		p.fixed[addr+uint64(i)] = v
	}
}

// Path says where a value comes from. A value of 32 bits is recognized if nothing
// was added to it.
func (p *SymbolicMemory) Path(v uint64) (Path, bool) {
	if v>>32 == 0 {
		id, offset, ok := p.locate(probeBase | v)
		if !ok || offset != 0 {
			return Path{}, false
		}
		return p.path(id, 0), true
	}
	id, offset, ok := p.locate(v)
	if !ok {
		return Path{}, false
	}
	return p.path(id, offset), true
}

func (p *SymbolicMemory) path(id int, tail int64) Path {
	var offsets []int64
	for p.nodes[id].parent >= 0 {
		offsets = append(offsets, p.nodes[id].offset)
		id = p.nodes[id].parent
	}
	slices.Reverse(offsets)
	return Path{Root: nodeAddr(id), Offsets: offsets, Tail: tail}
}

// Loads are the loads from objects so far, in order.
func (p *SymbolicMemory) Loads() []Load { return p.loads }

// FetchAt reads code, of which there is none in objects: a call of a virtual
// function ends here.
func (p *SymbolicMemory) FetchAt(b []byte, addr uint64) error {
	if _, _, ok := p.locate(addr); ok {
		return errors.New("probing: call through a field of an object")
	}
	return p.code.ReadAt(b, addr)
}

// ReadAt makes up the memory of objects and reads all else from the code.
func (p *SymbolicMemory) ReadAt(b []byte, addr uint64) error {
	id, offset, ok := p.locate(addr)
	if !ok {
		return p.code.ReadAt(b, addr)
	}
	if len(p.loads) < probeMax {
		p.loads = append(p.loads, Load{Path: p.path(id, offset), Size: len(b)})
	}
	if p.isFixed(b, addr) {
		return nil
	}
	clear(b)
	if len(b) == 4 {
		v, err := p.load(id, offset, 4)
		binary.LittleEndian.PutUint32(b, uint32(v))
		return err
	}
	for i := 0; i+8 <= len(b); i += 8 {
		if p.isFixed(b[i:i+8], addr+uint64(i)) {
			continue
		}
		v, err := p.load(id, offset+int64(i), 8)
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(b[i:], v)
	}
	return nil
}

func (p *SymbolicMemory) isFixed(b []byte, addr uint64) bool {
	for i := range b {
		v, ok := p.fixed[addr+uint64(i)]
		if !ok {
			return false
		}
		b[i] = v
	}
	return true
}
