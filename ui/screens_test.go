package ui

import (
	"fmt"
	"math"
	"testing"
	"time"

	"tt-memtrace/aggregator"
)

var sizes = [][2]int{{80, 24}, {120, 40}, {200, 60}}

// Every view, at every size: an idle host, and busy ones of one, eight and 32 chips.
func TestEveryView(t *testing.T) {
	for _, chips := range []int{0, 1, 8, 32} {
		w := newWorld(chips)
		if chips == 0 {
			w.view(settings{})
		} else {
			w = busy(chips)
			w.system = cards(t, (chips+1)/2)
			w.reader.system = w.system
			w.look()
		}
		for id, name := range pageNames {
			for _, size := range sizes {
				if chips == 0 && size[0] != 80 || chips == 1 && size[0] == 200 {
					continue
				}
				w.frame.current = pageID(id)
				golden(t, fmt.Sprintf("view-%s-%dchips-%dx%d.txt", name, chips, size[0], size[1]), w.text(t, size[0], size[1]))
			}
		}
	}
}

// What lies below the first look at a view: other tables, details, filters, a cursor.
func TestViewsFurtherIn(t *testing.T) {
	w := busy(8)
	w.system = cards(t, 4)
	past := w.frame.history
	for _, c := range []struct{ name, keys string }{
		{"tables-circular", "5<Tab>"}, {"tables-programs", "5<Tab><Tab>"}, {"tables-kernels", "5<Tab><Tab><Tab>"},
		{"tables-filter", "5sssf0x1.*inter<Enter>"}, {"tables-detail", "5jj<Enter>"}, {"tables-columns", "5cjjj "}, {"tables-exact", "5u"},
		{"programs-detail", "5<Tab><Tab><Enter>"}, {"kernels-detail", "5<Tab><Tab><Tab><Enter>"}, {"circular-detail", "5<Tab><Enter>"},
		{"map-dram", "4<Tab>"}, {"map-trace", "4<Tab><Tab>"}, {"map-detail", "4jjj<Enter>"}, {"map-free", "4/free<Enter>"}, {"map-core", "4<Left>"},
		{"charts-hour", "3--"}, {"charts-alone", "3<Enter>"}, {"charts-cursor", "3-hhhhhhhhhhhhhhh"}, {"charts-highest", "3y"},
		{"events-filter", "6ffree<Enter>"}, {"events-detail", "6kkk<Enter>"}, {"events-search", "6/START<Enter>"},
		{"processes-detail", "7<Enter>"}, {"chip-2", "2]]"}, {"help", "4?"}, {"prompt", "5f(["}, {"overview-filter", "fpython<Enter>"},
	} {
		w.view(settings{})
		w.frame.history = past
		w.frame.SetRect(0, 0, 120, 40)
		w.look()
		w.text(t, 120, 40)
		w.press(c.keys)
		golden(t, "further-"+c.name+".txt", w.text(t, 120, 40))
	}
	w.system = nil
	w.view(settings{ascii: true}).history = past
	w.look()
	w.frame.settings.ascii = true
	for id, name := range pageNames {
		w.frame.current = pageID(id)
		got := w.text(t, 80, 24)
		for _, r := range got {
			if r > '~' {
				t.Errorf("%s: %q is not ASCII", name, r)
			}
		}
		golden(t, "ascii-"+name+".txt", got)
	}
}

// full is a host where everything is full and every number as large as can be.
func full() *world {
	w := newWorld(2)
	w.view(settings{})
	const huge = 1 << 47
	device := w.id()
	for pid := range uint32(3) {
		pid += math.MaxInt32 - 3
		w.tell(aggregator.Event{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{Started: math.MaxUint64, Command: hostile + hostile + hostile, Release: hostile, Library: hostile, NotCovered: hostile}})
		chips := []aggregator.Chip{{Space: pid, Number: math.MaxUint32}, {Number: math.MaxUint32}}
		w.tell(aggregator.Event{Kind: aggregator.DeviceOpen, PID: pid, Device: device, Opened: &aggregator.Opened{Chips: chips, Boards: []string{hostile, hostile}, Arch: hostile}})
		w.tell(aggregator.Event{Kind: aggregator.AllocatorSeen, PID: pid, Device: device, Allocator: device + 1, Capacity: &aggregator.Capacity{
			banks(math.MaxUint16, huge), banks(math.MaxUint16, huge), banks(0, 0), banks(1, 1), banks(math.MaxUint16, huge)}})
		for m := range aggregator.NumMemories {
			w.tell(aggregator.Event{Kind: aggregator.Alloc, PID: pid, TID: math.MaxUint32, Device: device, Allocator: device + 1, Buffer: math.MaxUint64 - uint64(m), Memory: m,
				Address: math.MaxUint64 - huge, PerBank: huge, Size: huge, PageSize: math.MaxUint64, Layout: 255, Caller: math.MaxUint64})
		}
		program := w.program(pid, device, hostile, math.MaxUint64, circular(1<<30, 1<<30, 255, 3))
		w.tell(aggregator.Event{Kind: aggregator.KernelLoaded, PID: pid, Program: program, Device: device, Kernel: &aggregator.Kernel{ID: 1, Name: hostile, Hash: hostile, Processor: hostile, Path: hostile, Bytes: huge, Sized: true}})
	}
	w.tell(aggregator.Event{Kind: aggregator.Lost, Count: math.MaxUint64})
	w.pass(3 * time.Second)
	return w
}

func TestHugeNumbersAndHostileWords(t *testing.T) {
	for id, name := range pageNames {
		for _, size := range sizes[:2] {
			w := full()
			w.frame.current = pageID(id)
			golden(t, fmt.Sprintf("full-%s-%dx%d.txt", name, size[0], size[1]), w.text(t, size[0], size[1]))
			w.press("u<Enter>")
			w.text(t, size[0], size[1])
		}
	}
}
