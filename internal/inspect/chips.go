package inspect

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/inspect/view"
	"tt-memtrace/internal/memory"
)

// Chips reads the chips of one process, by its own numbers.
type Chips struct {
	in  *Inspector
	pid uint32
	// ids reads the unique ids of all chips.
	ids func() (map[uint32]uint64, error)
	*chipAnswers
}

// chipAnswers are the properties of a process's chips, which do not change. Reading them can take long, so it happens
// without the lock.
type chipAnswers struct {
	mu sync.Mutex
	// private: the process began with chips numbered in its own way, or that is unreadable. asked: private is known.
	private, asked bool
	// environ is the address of the variable that points to its environment; 0 until found.
	environ uint64
	uniques map[uint32]uint64
	boards  map[uint32]string
}

// NewChips returns the Chips of a process. It reads nothing yet.
func NewChips(in *Inspector, pid uint32) *Chips {
	return &Chips{in, pid, in.UniqueIDs, &chipAnswers{boards: map[uint32]string{}}}
}

// By returns the same chips, read by another inspector of the process. Both share what was read.
func (c *Chips) By(in *Inspector) *Chips { return &Chips{in, c.pid, in.UniqueIDs, c.chipAnswers} }

// Device is what a process says about an open device.
type Device struct {
	Mesh   bool
	Arch   string
	boards []string
	// The process's numbers of the chips, and their unique ids, 0 where unknown.
	numbers []uint32
	uniques []uint64
	// private: the process renumbers chips, or may do so.
	private bool
}

// Device reads the properties of a device. It fails with memory.ErrLater if some of them need a later read.
func (c *Chips) Device(address uint64) (d Device, err error) {
	before := c.in.Unanswered()
	defer func() {
		if err == nil && c.in.Unanswered() != before {
			d, err = Device{}, fmt.Errorf("reading the device at %#x: %w", address, memory.ErrLater)
		}
	}()
	v := c.in.view()
	d.numbers, d.Mesh, d.Arch, err = readDevice(v, address)
	if err == nil && d.Mesh {
		// A mesh that is reshaped makes a new list of its chips, and a read at that moment can see parts of both.
		if again, _, _, err := readDevice(c.in.View(), address); err != nil || !slices.Equal(again, d.numbers) {
			return Device{}, fmt.Errorf("reading the device at %#x, whose chips change: %w", address, memory.ErrLater)
		}
		slices.Sort(d.numbers) // a reshape changes nothing but their order
	}
	d.uniques = c.uniquesOf(d.numbers)
	for _, n := range d.numbers {
		d.boards = append(d.boards, c.boardOf(v, n))
	}
	d.private = c.beganPrivate()
	if !d.private && slices.Contains(d.uniques, 0) {
		// If this cannot be read, its chip 0 may be another one than other processes' chip 0.
		set, failed := c.renumbers(v)
		d.private = set || failed != nil
	}
	return d, err
}

// Devices reads the properties of devices. Those that cannot be read are left out.
func (c *Chips) Devices(addresses []uint64) map[uint64]Device {
	list := map[uint64]Device{}
	for _, address := range addresses {
		if d, err := c.Device(address); err == nil {
			list[address] = d
		}
	}
	return list
}

// beganPrivate reports whether the process began with chips numbered in its own way.
func (c *Chips) beganPrivate() bool {
	c.mu.Lock()
	private, asked := c.private, c.asked
	c.mu.Unlock()
	if !asked {
		value, err := c.in.Opener.Environment(visibleDevices)
		private = value != "" || errors.Is(err, memory.ErrNoAnswer)
		if !errors.Is(err, memory.ErrLater) {
			c.mu.Lock()
			c.private, c.asked = private, true
			c.mu.Unlock()
		}
	}
	return private
}

// renumbers reports whether the process renumbers its chips now.
func (c *Chips) renumbers(v *view.View) (bool, error) {
	c.mu.Lock()
	at := c.environ
	c.mu.Unlock()
	if at == 0 {
		var err error
		if at, err = environ(c.in.Opener); err != nil {
			return false, fmt.Errorf("looking for the environment: %w", err)
		}
		c.mu.Lock()
		c.environ = at
		c.mu.Unlock()
	}
	return environmentSets(v, at, visibleDevices)
}

// Opened names the chips of a device. used reports whether another process uses a chip.
func (c *Chips) Opened(d Device, names ChipNames, used func(unique uint64) bool) *aggregator.Opened {
	return &aggregator.Opened{Chips: d.Chips(c.pid, names, used), Mesh: d.Mesh, Arch: d.Arch, Boards: d.boards, UniqueIDs: d.uniques}
}

// Numbers are the process's own numbers of the device's chips, in ascending order.
func (d Device) Numbers() []uint32 { return d.numbers }

// Chips names the chips of a device, of which the process has a copy where another one is the owner: their numbers are
// the owner's.
func (d Device) Chips(owner uint32, names ChipNames, used func(unique uint64) bool) (chips []aggregator.Chip) {
	for i, n := range d.numbers {
		chips = append(chips, names.chip(owner, n, d.uniques[i], d.private, used))
	}
	return chips
}

// Uses reports whether the process has the chip with a unique ID.
func (c *Chips) Uses(unique uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.uniques {
		if id == unique {
			return true
		}
	}
	return false
}

// uniquesOf returns the unique IDs of a device's chips, 0 if unknown. They are read once; again if a chip is missing;
// and with the next device if reading failed.
func (c *Chips) uniquesOf(numbers []uint32) (list []uint64) {
	failed := false
	for _, n := range numbers {
		c.mu.Lock()
		id, asked := c.uniques[n]
		c.mu.Unlock()
		if !asked && !failed {
			ids, err := c.ids() // that can take long
			if failed = err != nil; !failed {
				ids[n] += 0 // asked
				c.mu.Lock()
				c.uniques = ids
				c.mu.Unlock()
				id = ids[n]
			}
		}
		list = append(list, id)
	}
	return list
}

// boardOf returns the card of a chip, which is read once.
func (c *Chips) boardOf(v *view.View, number uint32) string {
	c.mu.Lock()
	name, ok := c.boards[number]
	c.mu.Unlock()
	if !ok {
		before := v.Unanswered()
		name = boardOfChip(v, number)
		if v.Unanswered() == before {
			c.mu.Lock()
			c.boards[number] = name
			c.mu.Unlock()
		}
	}
	return name
}

// ChipNames maps unique IDs to chips: all processes show a chip under the name that the first process gave it.
type ChipNames map[uint64]aggregator.Chip

// chip returns the chip that a process means by its own number. If the unique ID is unknown, a number of a process
// that renumbers chips counts as private to it. used reports whether a unique ID's chip is in use.
func (known ChipNames) chip(pid, number uint32, unique uint64, private bool, used func(uint64) bool) aggregator.Chip {
	chip := aggregator.Chip{Number: number}
	if private {
		chip.Space = pid
	}
	if unique == 0 {
		return chip
	}
	if c, ok := known[unique]; ok {
		return c
	}
	if known.taken(chip, used) { // another chip has that number
		// One of an earlier process with this PID, or of its own, may have that name, too.
		for chip.Space = pid; known.taken(chip, used); chip.Number++ {
		}
	}
	known[unique] = chip
	return chip
}

// taken reports whether a chip that is in use has a name already. A chip that is not loses it.
func (known ChipNames) taken(name aggregator.Chip, used func(uint64) bool) (is bool) {
	for unique, c := range known {
		if c != name {
			continue
		}
		if used(unique) {
			is = true
		} else {
			delete(known, unique)
		}
	}
	return is
}
