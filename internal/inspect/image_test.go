package inspect_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/test/image"
	"tt-memtrace/test/rig"
)

// reader reads images of one library.
type reader struct {
	lib    *metal.Library
	layout *metal.Layout
}

func readerOf(t *testing.T, i *image.Image) reader {
	t.Helper()
	lib, err := i.OpenLibrary()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lib.Close() })
	layout, err := lib.Layout()
	if err != nil {
		t.Fatal(err)
	}
	return reader{lib, layout}
}

func (r reader) scan(i *image.Image) *image.Held {
	return image.Scan(inspect.NewOver(memory.From(i.PID, i), r.lib, i.Library), r.layout, i.PID, i.Fork())
}

func images(t *testing.T) map[string]*image.Image {
	t.Helper()
	set, err := image.All()
	if err != nil || len(set) == 0 {
		t.Fatalf("%d images: %v", len(set), err)
	}
	return set
}

// A process that was recorded has what its runtime said of it: each buffer at its address, and the banks.
func TestImages(t *testing.T) {
	for name, i := range images(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, err := i.Message()
			if err != nil {
				t.Fatal(err)
			}
			held := readerOf(t, i).scan(i)
			unread := len(held.UnreadPrograms) + len(held.UnreadAllocators) + len(held.Failed)
			if held.Err != nil || held.Unsearched != nil || unread > 0 {
				t.Fatalf("not read: %v, %v, programs %v, allocators %v, %v",
					held.Err, held.Unsearched, held.UnreadPrograms, held.UnreadAllocators, held.Failed)
			}
			if why := held.BlocksDisagree(nil); why != "" {
				t.Error(why)
			}
			if i.Copies {
				compareCopies(t, held, said)
				return
			}
			var want, got []string
			banks := map[string]bool{}
			for _, d := range said.Devices {
				for _, b := range d.Buffers {
					want = append(want, fmt.Sprintf("%s %#x", b.Type, b.Address))
				}
				for memory, view := range d.Views {
					banks[fmt.Sprintf("%s: %d of %d", memory, view.NumBanks, view.TotalBytesPerBank)] = true
				}
			}
			for _, b := range held.Scan.Buffers {
				got = append(got, fmt.Sprintf("%s %#x", b.Memory, b.Address))
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("buffers\n%q, the runtime says\n%q", got, want)
			}
			for _, c := range held.Capacities {
				for memory, b := range c {
					delete(banks, fmt.Sprintf("%s: %d of %d", aggregator.Memory(memory), b.Count, b.Bytes))
				}
			}
			if len(banks) > 0 {
				t.Errorf("no allocator has %v, but %+v", slices.Collect(maps.Keys(banks)), held.Capacities)
			}
		})
	}
}

// compareCopies compares a child that has only copies of its parent's objects: nothing is its own, and what the parent
// has freed since is left over, because the child's memory does not show who did.
func compareCopies(t *testing.T, held *image.Held, parent rig.Message) {
	t.Helper()
	if len(held.Devices) > 0 || len(held.Scan.Buffers) > 0 || len(held.Unsure) > 0 {
		t.Errorf("it has the devices %v and the buffers %+v", held.Devices, held.Scan.Buffers)
	}
	left := held.Leftover
	if left == nil || left.Unread != nil || len(left.Buffers) != 1 {
		t.Fatalf("%+v is left over", left)
	}
	for _, d := range parent.Devices {
		for _, b := range d.Buffers {
			if b.Type == left.Buffers[0].Memory.String() && b.Address == left.Buffers[0].Address {
				t.Errorf("%+v is left over, and the parent has it", left.Buffers[0])
			}
		}
	}
}

// Whatever page of a process is missing, a scan is not silently wrong: it reports what it could not read, and the rest
// is as with all pages.
func TestImagesWithAPageMissing(t *testing.T) {
	for name, i := range images(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := readerOf(t, i)
			whole := r.scan(i)
			pages := slices.Sorted(maps.Keys(i.Pages))
			stride := max(len(pages)/leftOut, 1)
			if *everyPage {
				stride = 1
			}
			var next int
			var mu sync.Mutex
			var group sync.WaitGroup
			for range runtime.GOMAXPROCS(0) {
				group.Go(func() {
					for {
						mu.Lock()
						n := next
						next += stride
						mu.Unlock()
						if n >= len(pages) {
							return
						}
						if why := silent(whole, r.scan(i.Without(pages[n]))); why != "" {
							t.Errorf("without the page at %#x: %s", pages[n], why)
						}
					}
				})
			}
			group.Wait()
		})
	}
}

// everyPage leaves out each page in turn, not only some: that takes minutes.
var everyPage = flag.Bool("every-page", false, "leave out each page of an image in turn")

// leftOut is how many pages of an image are left out in turn.
const leftOut = 12

// silent returns what is wrong with a scan and not said to be, by the scan of the whole process.
func silent(whole, part *image.Held) string {
	if part.Err != nil || part.Unsearched != nil {
		return ""
	}
	byID := func(a, b aggregator.LiveBuffer) int { return cmp.Compare(a.Buffer, b.Buffer) }
	buffers := func(h *image.Held) []aggregator.LiveBuffer {
		return slices.SortedFunc(slices.Values(h.Scan.Buffers), byID)
	}
	if len(part.UnreadAllocators) == 0 && part.BlocksDisagree(nil) == "" && part.Unreserved == nil {
		if a, b := buffers(whole), buffers(part); !reflect.DeepEqual(a, b) {
			return fmt.Sprintf("%d buffers and nothing unread, with it %d\n%+v\n%+v", len(b), len(a), b, a)
		}
	}
	if len(part.UnreadPrograms) == 0 && part.Scan.ProgramsRead && !reflect.DeepEqual(programs(whole), programs(part)) {
		return fmt.Sprintf("programs\n%+v\nwith it\n%+v", programs(part), programs(whole))
	}
	if l := part.Leftover; l != nil && l.Unread == nil && !reflect.DeepEqual(l, whole.Leftover) {
		return fmt.Sprintf("%+v is left over, with it %+v", l, whole.Leftover)
	}
	if len(part.Failed) == 0 {
		for allocator, c := range part.Capacities {
			with := whole.Capacities[allocator]
			for memory := range c {
				if !c[memory].Based { // it is unknown where the bank begins
					with[memory].Base, with[memory].Based = 0, false
				}
			}
			if c != with {
				return fmt.Sprintf("capacity %+v, with it %+v", c, with)
			}
		}
		if len(part.Capacities) != len(whole.Capacities) {
			return fmt.Sprintf("%d capacities, with it %d", len(part.Capacities), len(whole.Capacities))
		}
		if !reflect.DeepEqual(part.Rings, whole.Rings) {
			return fmt.Sprintf("rings %+v, with it %+v", part.Rings, whole.Rings)
		}
	}
	return ""
}

func programs(h *image.Held) []string {
	var list []string
	for _, p := range h.Programs {
		list = append(list, fmt.Sprintf("%+v", p))
	}
	slices.Sort(list)
	return list
}
