package tracer

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/proc"
)

// Each step of a device's life, from each state, leads where it should.
func TestLifeOfADevice(t *testing.T) {
	const address = 0x1000
	chips := []aggregator.Chip{{Number: 3}}
	steps := map[string]func(p *traced){
		"opens":        func(p *traced) { p.devices.opens(address) },
		"is read":      func(p *traced) { p.awaitCapacity(address) },
		"is described": func(p *traced) { p.devices.describe(address, chips, false) },
		"is sized":     func(p *traced) { p.devices.sized(address) },
		"begins to close": func(p *traced) {
			p.devices.begins(address).closing = &closing{above: map[uint64]uint64{}}
		},
		"has closed": func(p *traced) { p.devices.close(address, 9) },
	}
	type state struct{ known, described, sizing, closing, closed bool }
	of := func(p *traced) state {
		d := p.devices.all[address]
		_, closed := p.devices.closed[address]
		if d == nil {
			return state{closed: closed}
		}
		return state{true, d.described, d.sizing != nil, d.closing != nil, closed}
	}
	none := state{}
	opens, open := state{known: true, sizing: true}, state{known: true, described: true}
	reading := state{known: true, described: true, sizing: true}
	closes, closed := state{known: true, described: true, closing: true}, state{closed: true}
	unseen := state{known: true, closing: true}
	for path, want := range map[string]state{
		"opens": none, "is read": opens, "is described": open, "begins to close": unseen, "has closed": closed,
		"is read, is sized": none, "is read, is described": reading, "is read, opens": none, "is read, has closed": closed,
		"is described, is read": reading, "is described, is read, is sized": open, "is described, is sized": open,
		"is described, begins to close": closes, "is described, begins to close, is described": closes,
		"is described, begins to close, has closed": closed, "is described, begins to close, opens": none,
		"begins to close, is sized": unseen, "has closed, is described": open, "has closed, opens": none,
	} {
		var p traced
		for _, step := range strings.Split(path, ", ") {
			steps[step](&p)
		}
		if got := of(&p); got != want {
			t.Errorf("%s: it is %+v, want %+v", path, got, want)
		}
	}
}

// The devices that are remembered as closed are bounded.
func TestClosedDevicesAreBounded(t *testing.T) {
	var p traced
	for i := range uint64(maxClosed + 2) {
		p.devices.close(i, i)
	}
	if n := len(p.devices.closed); n != 2 || !slices.Contains(slices.Collect(maps.Keys(p.devices.closed)), maxClosed+1) {
		t.Errorf("%d are remembered", n)
	}
}

// Records of a process that names ever more devices take no longer than the first ones: only busy devices are looked
// at, and these are bounded.
func TestBusyDevicesAreBounded(t *testing.T) {
	var p traced
	for i := range uint64(maxClosed) {
		p.devices.describe(i, nil, false)
		p.awaitCapacity(i)
	}
	if n := len(p.devices.busy); n != maxUnsized {
		t.Errorf("%d are busy", n)
	}
	for i := range uint64(maxClosed) {
		p.devices.begins(i).waiting = []waiting{{program: 5}}
		p.noProgram(5)
		p.devices.sized(i)
	}
	if n := len(p.devices.busy); n > 0 {
		t.Errorf("%d remain busy", n)
	}
}

// An allocator that was only seen to change its size is none of the process's: there is nothing to compare.
func TestResizedAllocatorThatIsUnknown(t *testing.T) {
	const unknown = 0x2000
	r, p, _ := beingRead(t, false)
	p.resized = map[uint64]*attempt{}
	r.devices.resizes(record{p: p}, &bpf.MemtraceTtObject{Object: unknown})
	if len(p.allocators) > 0 || p.resized[unknown] == nil {
		t.Errorf("its allocators are %v, resized %v", p.allocators, p.resized)
	}
	if r.devices.readResized(p, true); len(p.resized) > 0 || len(r.batch) > 0 {
		t.Errorf("%v is still read, for %+v", p.resized, r.batch)
	}
}

// What is looked for at a pace is due after waits that grow, and is given up.
func TestPace(t *testing.T) {
	p := pace{first: time.Hour, longest: 5 * time.Hour, factor: 2, until: 10 * time.Hour}
	now := proc.Now()
	a := p.from(now)
	if a.due(false) || !a.due(true) {
		t.Errorf("at first it is due: %t; for one who waits: %t", a.due(false), a.due(true))
	}
	waits := []time.Duration{}
	for range 4 {
		if !a.again(p) {
			t.Fatal("it is given up too early")
		}
		waits = append(waits, a.wait)
	}
	if want := []time.Duration{2 * time.Hour, 4 * time.Hour, 5 * time.Hour, 5 * time.Hour}; !slices.Equal(waits, want) {
		t.Errorf("it waits %v, want %v", waits, want)
	}
	if a.soon(p); a.wait != p.first {
		t.Errorf("soon is %v", a.wait)
	}
	late := proc.Now() - min(proc.Now(), uint64(p.first))
	if a := (pace{time.Nanosecond, time.Nanosecond, 1, time.Nanosecond}).from(late); !a.due(false) || a.age() <= 0 {
		t.Errorf("after its time it is due: %t, at an age of %v", a.due(false), a.age())
	} else if a.again(pace{1, 1, 1, 1}) {
		t.Error("it is not given up")
	}
	var i interval
	if !i.due(time.Hour, false) || i.due(time.Hour, false) || !i.due(time.Hour, true) {
		t.Error("what was just done is due")
	}
}
