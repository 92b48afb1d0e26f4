package buffers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
)

// An allocator that is scanned often mostly has the same buffers as before. So their objects and their nodes of the
// set are read with few requests, and only new ones are followed from pointer to pointer. The node and the object of
// a buffer often lie in one page.

// rescan is what the last scan of an allocator found.
type rescan struct {
	// pieces are the memory of the slots; nil before the first scan.
	pieces *memory.Pieces
	slots  []slot
	byNode map[uint64]int
	// order lists the slots in the set, in its order.
	order []int
	// planned is the number of slots when the pieces were last sorted, and added how many came since.
	planned, added int
	scans          int
	// whole: no buffer may be missing, because events report what comes and goes during the scan.
	whole bool
	// followed: the last reading followed the set to its end and knows what it met. unchanged: moreover, the set was
	// the same as before.
	followed, unchanged bool
	// oneMoment: the last reading shows the state at one moment. rested: moreover, the process did not run during it.
	// empty: the set's head alone shows that it is empty, as for the chips of a mesh.
	oneMoment, rested, empty bool
	// sizes are the buffers' sizes in each bank.
	sizes sizes
}

// Earlier are what the last scans of allocators found, for scans that are repeated; nil for a single one.
type Earlier map[uint64]*rescan

// rescan returns what the last scan of an allocator found.
func (e Earlier) rescan(allocator uint64) *rescan {
	if e == nil {
		return &rescan{whole: true}
	}
	if e[allocator] == nil {
		e[allocator] = &rescan{}
	}
	return e[allocator]
}

// sizes returns the sizes of an allocator's buffers, which single scans do not compute: nil.
func (e Earlier) sizes(allocator uint64) *sizes {
	if r := e[allocator]; r != nil {
		return &r.sizes
	}
	return nil
}

// Keep forgets all allocators but these.
func (e Earlier) Keep(allocators []uint64) {
	maps.DeleteFunc(e, func(a uint64, _ *rescan) bool { return !slices.Contains(allocators, a) })
}

// slot is a buffer that is in the set, or was.
type slot struct {
	node, buffer uint64
	// next is the node's next pointer when it was last met.
	next uint64
	// was is the buffer as last returned; empty if it was not.
	was aggregator.LiveBuffer
	// window is where its fields are; 0 if not read yet.
	window uint64
	// place is its index in order, and seen the last scan that found it in the set.
	place, seen int
	// piece is the number of the node's piece. The window's piece follows and, with Indirect, the pointer's.
	piece int
}

// pieces returns the memory to read for the slot.
func (s *slot) pieces(layout *metal.Layout) []memory.Piece {
	list := []memory.Piece{{Address: s.node, Size: nodeBytes}, {Address: s.window, Size: metal.WindowSize}}
	if layout.Indirect {
		list = append(list, memory.Piece{Address: s.buffer + uint64(layout.Base), Size: 8})
	}
	return list
}

// errNoSet: the set is gone: the process ended or called exec.
var errNoSet = errors.New("its set of buffers cannot be read")

// errMoved: the set changed while it was read.
var errMoved = errors.New("it changed while it was read")

// errMixed: what was read is from several moments.
var errMixed = errors.New("it changed between two scans")

// manyBuffers take longer to read again than the states of a process's threads.
const manyBuffers = 1000

// strictTime is how much CPU time to spend on re-reading a set until it does not change during a reading.
const strictTime = 10 * time.Millisecond

// A node that is removed and inserted elsewhere while the set is read leads past other nodes that were there all the
// time, and removed ones make up for them in the count. What is met once is kept while it lives, so a node is missing
// only if every reading passed it by. So a changing set is followed twice, or four times if none may be missing.
const (
	timesFollowed      = 2
	timesFollowedWhole = 4
)

// follow reads the buffers as often as necessary, until over. Until strictOver it tries to get the state of one
// moment.
func (r *rescan) follow(set *bufferSet, strictOver, over func() bool) ([]aggregator.LiveBuffer, error) {
	times := timesFollowed
	if r.whole {
		times = timesFollowedWhole
	}
	for followed := 0; ; {
		live, err := r.buffers(set, strictOver)
		switch {
		case r.followed:
			followed++
		case r.pieces == nil: // buffers has forgotten what was met
			followed = 0
		}
		switch {
		case err == nil && (r.empty || followed >= times || r.rested || !r.whole && (r.oneMoment || r.unchanged)):
			return live, nil
		case err == nil:
		case errors.Is(err, memory.ErrHung), errors.Is(err, memory.ErrInterrupted), errors.Is(err, errNoSet):
			return nil, err // trying again would not help
		case over():
			return nil, fmt.Errorf("reading the buffers of the allocator at %#x: %w: %w",
				set.allocator, view.ErrChanging, err)
		}
	}
}

// buffers reads what an allocator has now. Until over, it insists on the state of one moment. Otherwise it returns
// what the allocator had in the milliseconds of the reading: everything that was there all the time, and nothing that
// was not there at some moment.
func (r *rescan) buffers(set *bufferSet, over func() bool) (live []aggregator.LiveBuffer, err error) {
	if r.pieces == nil || r.added > r.planned/8+16 {
		r.plan(set)
	}
	was, slots := r.order, len(r.slots)
	defer func() {
		switch {
		case errors.Is(err, errMixed): // what was added stays known
		case errors.Is(err, errMoved):
			for _, s := range r.slots[slots:] {
				if r.byNode[s.node] >= slots {
					delete(r.byNode, s.node)
				}
			}
			r.order, r.slots = was, r.slots[:slots]
		case err != nil:
			*r = rescan{sizes: r.sizes, whole: r.whole} // for example, one of its pages is unmapped
		}
	}()
	r.followed, r.unchanged = false, false
	strict, activity := !over(), watch(set.Mem)
	first, count, err := set.head()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoSet, err)
	}
	if r.empty = first == 0 && count == 0; r.empty {
		r.order = nil
		return nil, nil
	}
	if err := r.pieces.Read(); err != nil {
		return nil, err
	}
	return r.settle(set, first, count, strict, over, activity)
}

// settle follows the set, whose pieces were just read, and verifies what was read: as many nodes may have gone as
// came, and a buffer may have been read while it was written. If the process did not run during that, all is right.
// Otherwise what reads the same twice as a whole is the state of one moment, and each single thing that reads the
// same twice was so at some moment.
func (r *rescan) settle(
	set *bufferSet, first, count uint64, strict bool, over func() bool, activity activity,
) ([]aggregator.LiveBuffer, error) {
	was := r.order
	found, after, err := r.walk(set, first, count)
	odd := err == nil && (found < min(count, after) || found > max(count, after))
	if len(was) == 0 && (errors.Is(err, errMoved) || odd) {
		// Following one by one takes too long. From now on, those that were met are read with few requests.
		if err := r.add(set); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it had %d elements, and %d were found at first", errMixed, count, len(r.order))
	}
	if err != nil {
		return nil, err
	}
	r.unchanged = slices.Equal(was, r.order) && found == count && found == after
	// With many buffers, and a running process, two readings are hardly ever the same.
	strict = strict && !(activity.ran() && over())
	kept := false
	if odd {
		// Known ones are checked one by one below. Some new ones may be missing.
		missing := count/128 + 2
		if r.whole {
			missing = 0
		}
		if strict || found > max(count, after)+missing {
			return nil, fmt.Errorf("%w: it had %d elements, then %d, and %d were found", errMoved, count, after, found)
		}
		r.keep(set, was)
		kept = true
		if n := uint64(len(r.order)); n+missing < min(count, after) {
			return nil, fmt.Errorf("%w: it had %d elements, then %d, and %d were found", errMoved, count, after, n)
		}
	}
	if !strict && !kept {
		r.keep(set, was) // as many may have been missed as came
	}
	if err := r.add(set); err != nil {
		return nil, err
	}
	r.followed = true
	readings := r.readings(set)
	switch {
	case !strict:
		err = r.confirm(set, readings)
	case len(readings) < manyBuffers || !activity.rested():
		if err = r.same(set, first, count, readings); errors.Is(err, errMixed) && over() {
			strict, err = false, nil
			r.keep(set, was)
			readings = r.agreed(set, readings)
		}
	}
	if err != nil {
		r.keep(set, was) // otherwise the next reading would not know those that this one passed by
		return nil, err
	}
	if !strict {
		r.dropReplaced(set, readings)
	}
	r.oneMoment, r.rested = strict, strict && activity.rested()
	live := make([]aggregator.LiveBuffer, 0, len(readings))
	for k, i := range r.order {
		h := &readings[k].live
		if r.slots[i].was = *h; h.Buffer != 0 {
			live = append(live, *h)
		}
	}
	return live, nil
}

// same reads everything once more, and fails unless it is unchanged.
func (r *rescan) same(set *bufferSet, first, count uint64, readings []reading) error {
	same, err := r.pieces.Reread()
	if err != nil {
		return err
	}
	again, number, err := set.head()
	if err != nil {
		return err
	}
	// Bytes between the pieces, and slots that left the set, may change.
	if again != first || number != count || !same && !slices.Equal(readings, r.readings(set)) {
		return errMixed
	}
	return nil
}

// agreed returns the second readings of a set that had changed, without buffers that changed in between, as in
// confirm. Slots that were kept since must be as last returned.
func (r *rescan) agreed(set *bufferSet, readings []reading) []reading {
	again := r.readings(set)
	for k := range again {
		n, known := &again[k], r.slots[r.order[k]].was
		if k < len(readings) {
			known = readings[k].live
		}
		if n.live != known || n.buffer != n.live.Buffer || !n.possible() {
			n.live = aggregator.LiveBuffer{}
		}
	}
	return again
}

// confirm reads again the buffers that are not as last returned, or whose node was not in the set when the buffer was
// read. It leaves out those that changed since: they are gone, and their memory may be partly overwritten.
func (r *rescan) confirm(set *bufferSet, readings []reading) error {
	var doubtful []int
	var nodes, windows []uint64
	for k, i := range r.order {
		s, is := &r.slots[i], &readings[k]
		if is.live.Buffer != 0 && (is.live != s.was || is.buffer != s.buffer) {
			doubtful, nodes, windows = append(doubtful, k), append(nodes, s.node), append(windows, s.window)
		}
	}
	// Nodes first: a node that has the buffer between two readings of its fields shows that it was live then.
	words, err := set.Mem.ReadEach(nodes, 0, nodeBytes)
	if err != nil {
		return fmt.Errorf("%w: %w", errMixed, err)
	}
	again, err := set.Mem.ReadEach(windows, 0, metal.WindowSize)
	if err != nil {
		return fmt.Errorf("%w: %w", errMixed, err)
	}
	for n, k := range doubtful {
		node, id := nodeOf(words[n*nodeBytes:]), readings[k].live.Buffer
		live, _ := set.buffer(again[n*metal.WindowSize:(n+1)*metal.WindowSize], id)
		if !node.possible() || node.buffer != id || live != readings[k].live {
			readings[k].live = aggregator.LiveBuffer{}
		}
	}
	return nil
}

// reading is what was read of a slot: its node, and the buffer (empty if it is not allocated).
type reading struct {
	node
	live aggregator.LiveBuffer
}

// readings decodes the last reading of the slots in the set.
func (r *rescan) readings(set *bufferSet) []reading {
	list := make([]reading, len(r.order))
	for k, i := range r.order {
		s := &r.slots[i]
		list[k].node = nodeOf(r.pieces.Bytes(s.piece))
		list[k].live, _ = set.buffer(r.pieces.Bytes(s.piece + 1)[:metal.WindowSize], s.buffer)
	}
	return list
}

// keep adds slots of the earlier order that this scan did not meet but that were live when they were read.
func (r *rescan) keep(set *bufferSet, was []int) {
	for _, i := range was {
		s := &r.slots[i]
		if s.seen == r.scans || nodeOf(r.pieces.Bytes(s.piece)).buffer != s.buffer {
			continue
		}
		if _, ok := set.buffer(r.pieces.Bytes(s.piece + 1)[:metal.WindowSize], s.buffer); ok {
			s.seen, s.place = r.scans, len(r.order)
			r.order = append(r.order, i)
		}
	}
}

// dropReplaced leaves out buffers whose address another one has now. The one that was met first wins, as kept ones
// come last. Two buffers that were both last returned never share an address, except for those with an address on
// each of their cores.
func (r *rescan) dropReplaced(set *bufferSet, readings []reading) {
	type place struct {
		memory  aggregator.Memory
		address uint64
	}
	placeOf := func(h *aggregator.LiveBuffer) place { return place{h.Memory, h.Address} }
	onCores := set.onCores(readings)
	taken := map[place]bool{} // true once taken by a buffer that was met
	for k, i := range r.order {
		if h := &readings[k].live; h.Buffer != 0 && !onCores[h.Buffer] && *h != r.slots[i].was {
			taken[placeOf(h)] = false
		}
	}
	for k := range readings {
		h := &readings[k].live
		if h.Buffer == 0 || onCores[h.Buffer] {
			continue
		}
		at := placeOf(h)
		switch met, contested := taken[at]; {
		case met:
			*h = aggregator.LiveBuffer{}
		case contested:
			taken[at] = true
		}
	}
}

// walk follows the set, whose pieces were just read. New slots have no window yet. It returns how many elements it
// found, and how many the set had at the end. If it fails, the order stays or, if there was none, becomes what was
// met.
func (r *rescan) walk(set *bufferSet, first, count uint64) (found, after uint64, err error) {
	r.scans++
	w := &walk{rescan: r, set: set, order: make([]int, 0, count), fresh: map[uint64]node{}, pages: set.Fresh()}
	if len(r.byNode) == 0 {
		w.ahead = set.nodesAhead(int(count))
	}
	failed := w.along(first, int(count+count/16+64))
	if failed == nil || len(r.order) == 0 {
		r.order = w.order
		for place, i := range r.order {
			r.slots[i].place = place
		}
	}
	if failed != nil {
		return 0, 0, failed
	}
	_, after, err = set.head()
	return uint64(len(r.order)), after, err
}

// add reads the windows of new slots and adds their pieces.
func (r *rescan) add(set *bufferSet) error {
	var added []int
	for _, i := range r.order {
		s := &r.slots[i]
		// Another buffer at this address can have its fields elsewhere.
		if s.window == 0 || set.layout.Indirect && binary.LittleEndian.Uint64(r.pieces.Bytes(s.piece+2)) != s.window {
			added = append(added, i)
		}
	}
	r.added += len(added)
	for some := range slices.Chunk(added, atOnce) {
		buffers := make([]uint64, len(some))
		for k, i := range some {
			buffers[k] = r.slots[i].buffer
		}
		at, windows, err := readWindows(set.Process, set.layout, buffers)
		if err != nil { // a freed node can hold anything in place of the pointer
			return fmt.Errorf("%w: %w", errMoved, err)
		}
		for k, i := range some {
			s := &r.slots[i]
			s.window = at[k]
			read := [][]byte{node{s.next, s.buffer}.bytes(), windows[k*metal.WindowSize : (k+1)*metal.WindowSize]}
			if set.layout.Indirect {
				read = append(read, binary.LittleEndian.AppendUint64(nil, s.window))
			}
			s.piece = r.pieces.Add(s.pieces(set.layout), read)
			r.byNode[s.node] = i
		}
	}
	return nil
}

// plan sorts the pieces of the slots in the set, and forgets the other slots.
func (r *rescan) plan(set *bufferSet) {
	slots := make([]slot, 0, len(r.order))
	for _, i := range r.order {
		slots = append(slots, r.slots[i])
	}
	*r = rescan{
		slots: slots, byNode: make(map[uint64]int, len(slots)), planned: len(slots), order: make([]int, 0, len(slots)),
		scans: r.scans, whole: r.whole, sizes: r.sizes,
	}
	var pieces []memory.Piece
	for i := range slots {
		s := &slots[i]
		s.piece, s.place = len(pieces), i
		pieces = append(pieces, s.pieces(set.layout)...)
		r.byNode[s.node] = i
		r.order = append(r.order, i)
	}
	r.pieces = memory.NewPieces(set.Mem, pieces)
}
