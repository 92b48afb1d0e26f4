package metal

import (
	"fmt"
	"slices"

	"tt-memtrace/internal/x86eval"
)

// setOffset returns the offset of an allocator's set of buffers. The function that copies the set shows it: it reads
// the numbers of buckets and of elements.
func (l *Library) setOffset() (uint64, error) {
	loads, err := l.loads(allocatedBuffers, true)
	if err != nil {
		return 0, err
	}
	for _, at := range loads {
		if !slices.Contains(loads, at-SetBucketCount+SetCount) {
			continue
		}
		set := at - SetBucketCount
		// The other function that reads it, if there is one, has to agree.
		counted, err := l.loads(numAllocatedBuffers, false)
		if err == nil && !slices.Contains(counted, set+SetCount) {
			return 0, fmt.Errorf("finding the set of buffers: it seems to be at %#x, but its count is not at %#x", set, set+SetCount)
		}
		return uint64(set), nil
	}
	return 0, fmt.Errorf("finding the set of buffers: %s does not show it", allocatedBuffers[0])
}

// loads returns the offsets of the first words that a function reads of its object.
func (l *Library) loads(names []string, copies bool) ([]int64, error) {
	image, err := l.Image()
	if err != nil {
		return nil, err
	}
	s, ok := l.symbols[l.First(names)]
	if !ok {
		return nil, fmt.Errorf("evaluating %s: the library lacks it", names[0])
	}
	probe := x86eval.NewSymbolicMemory(image)
	m := x86eval.New(probe, x86eval.WithSlots(image.SlotFunc(x86eval.Libc)), x86eval.WithStepLimit(1000))
	object := probe.Root()
	args := []uint64{object}
	if copies {
		result, err := m.Alloc(64)
		if err != nil {
			return nil, err
		}
		args = []uint64{result, object}
	}
	// It fails soon on a symbolic object, but the first reads are enough.
	_, _ = m.Call(s.Value, args...)
	var offsets []int64
	for _, load := range probe.Loads() {
		if len(load.Path.Offsets) == 0 && load.Size == 8 {
			offsets = append(offsets, load.Path.Tail)
		}
	}
	return offsets, nil
}
