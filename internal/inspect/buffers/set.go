package buffers

import (
	"encoding/binary"
	"fmt"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
)

// bufferSet is an allocator's std::unordered_set of buffers, in the process.
type bufferSet struct {
	*view.Process
	layout    *metal.Layout
	fields    bufferFields
	allocator uint64
	// at is its address.
	at uint64
}

func setOf(p *view.Process, layout *metal.Layout, allocator, at uint64) *bufferSet {
	return &bufferSet{p, layout, fieldsOf(layout), allocator, at}
}

// head returns the set's first node and its number of elements.
func (s *bufferSet) head() (first, count uint64, err error) {
	var head [metal.SetCount - metal.SetFirst + 8]byte
	if err := s.Mem.ReadAt(head[:], s.at+metal.SetFirst); err != nil {
		return 0, 0, err
	}
	if count = binary.LittleEndian.Uint64(head[metal.SetCount-metal.SetFirst:]); count > maxLiveBuffers {
		return 0, 0, fmt.Errorf("a set at %#x claims %d elements", s.at, count)
	}
	return binary.LittleEndian.Uint64(head[:]), count, nil
}

// buffer decodes a window of the set's allocator, as bufferFields.buffer.
func (s *bufferSet) buffer(w []byte, id uint64) (aggregator.LiveBuffer, bool) {
	return s.fields.buffer(w, id, s.allocator)
}

const nodeBytes = metal.NodeValue + 8

// node is a node of the set: the next node's address, and the buffer.
type node struct{ next, buffer uint64 }

func nodeOf(b []byte) node {
	return node{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[metal.NodeValue:])}
}

func (n node) bytes() []byte {
	b := make([]byte, nodeBytes)
	binary.LittleEndian.PutUint64(b, n.next)
	binary.LittleEndian.PutUint64(b[metal.NodeValue:], n.buffer)
	return b
}

// possible reports whether this can be a node. What malloc writes into freed memory is hardly ever aligned.
func (n node) possible() bool { return n.next%8 == 0 && n.buffer%8 == 0 && n.buffer != 0 }

// walk is one pass along the set.
type walk struct {
	*rescan
	set   *bufferSet
	order []int
	// fresh are nodes that were read again, ahead those that were read in advance; pages reads the remaining unknown
	// ones.
	fresh, ahead map[uint64]node
	pages        *memory.Pages
	// next is the expected place in the last order.
	next int
}

// along goes from node to node to the last one, or fails after most nodes.
func (w *walk) along(at uint64, most int) error {
	for repairs := 0; at != 0; {
		if n, ok := w.visit(at); ok {
			at = n.next
		} else if at, ok = w.before(at); !ok || repairs > most {
			return errMoved
		} else {
			repairs++
		}
		if len(w.order) > most {
			return errMoved
		}
	}
	return nil
}

// fewNodes are faster read one by one.
const fewNodes = 32

// nodesAhead reads most of a set's nodes with few requests: first those that the buckets point to, then their
// successors. Going from one node to the next would take a request for each page, and memory for it.
func (s *bufferSet) nodesAhead(count int) map[uint64]node {
	if count < fewNodes {
		return nil
	}
	var head [metal.SetBucketCount + 8]byte
	if s.Mem.ReadAt(head[:], s.at+metal.SetBuckets) != nil {
		return nil
	}
	buckets := binary.LittleEndian.Uint64(head[metal.SetBucketCount:])
	if buckets > 2*maxLiveBuffers {
		return nil
	}
	b := make([]byte, 8*buckets)
	if s.Mem.ReadAt(b, binary.LittleEndian.Uint64(head[:])) != nil {
		return nil
	}
	nodes := map[uint64]node{}
	var next []uint64
	add := func(at uint64) {
		if _, known := nodes[at]; !known && at != 0 && at%8 == 0 && at != s.at+metal.SetFirst && len(nodes) < count {
			nodes[at] = node{}
			next = append(next, at)
		}
	}
	for ; len(b) > 0; b = b[8:] {
		add(binary.LittleEndian.Uint64(b))
	}
	for len(next) >= fewNodes {
		these := next
		next = nil
		read, err := s.Mem.ReadEach(these, 0, nodeBytes)
		if err != nil {
			next = these
			break
		}
		for i, at := range these {
			n := nodeOf(read[nodeBytes*i:])
			nodes[at] = n
			add(n.next)
		}
	}
	for _, at := range next {
		delete(nodes, at)
	}
	return nodes
}

// visit goes to the node at an address. It returns false if this cannot be a node, or may have been another one when
// the node before it was read.
func (w *walk) visit(at uint64) (n node, ok bool) {
	i, known := 0, false
	if w.next < len(w.rescan.order) && w.slots[w.rescan.order[w.next]].node == at {
		i, known = w.rescan.order[w.next], true
	} else if i, known = w.byNode[at]; known {
		w.next = w.slots[i].place
	}
	if known {
		w.next++
	}
	n, again := w.fresh[at]
	first, read := w.ahead[at]
	switch {
	case again:
	case read:
		n = first
	case known:
		n = nodeOf(w.pieces.Bytes(w.slots[i].piece))
	default:
		var word [nodeBytes]byte
		if w.pages.ReadAt(word[:], at) != nil {
			return n, false
		}
		n = nodeOf(word[:])
	}
	if !n.possible() {
		return n, false
	}
	if known && n.buffer != w.slots[i].buffer {
		if !again {
			return n, false
		}
		known = false
	}
	if !known {
		i = len(w.slots)
		w.slots = append(w.slots, slot{node: at, buffer: n.buffer})
	} else if w.slots[i].seen == w.scans {
		return n, false // a cycle
	}
	w.slots[i].seen, w.slots[i].next = w.scans, n.next
	w.order = append(w.order, i)
	return n, true
}

// before goes back to the last node that is still in the set, and returns its present successor.
func (w *walk) before(bad uint64) (at uint64, ok bool) {
	if i, known := w.byNode[bad]; known && w.slots[i].seen == w.scans && len(w.order) > 0 {
		// A cycle: the last node was moved before this one, after this one was read.
		s := &w.slots[w.order[len(w.order)-1]]
		bad, s.seen, w.order = s.node, 0, w.order[:len(w.order)-1]
	}
	for len(w.order) > 0 {
		s := &w.slots[w.order[len(w.order)-1]]
		if n, ok := w.again(s.node); ok && n.buffer == s.buffer {
			if n.next != bad {
				return n.next, true
			}
			if _, ok := w.again(bad); ok {
				return bad, true
			}
		}
		bad, s.seen, w.order = s.node, 0, w.order[:len(w.order)-1]
	}
	first, _, err := w.set.head()
	if err == nil && first == bad {
		_, ok := w.again(bad)
		return bad, ok
	}
	return first, err == nil
}

// again reads a node once more.
func (w *walk) again(at uint64) (n node, ok bool) {
	var word [nodeBytes]byte
	if w.set.Mem.ReadAt(word[:], at) != nil {
		return n, false
	}
	n = nodeOf(word[:])
	if ok = n.possible(); ok {
		w.fresh[at] = n
	}
	return n, ok
}
