package inspect

import (
	"errors"
	"testing"
)

// Unique ids that could not be read are asked for again with the next device, but not for each of its chips; what was
// read is not asked for again.
func TestUniqueIDsAreAskedForAgain(t *testing.T) {
	asked := 0
	var ids map[uint32]uint64
	c := &Chips{chipAnswers: &chipAnswers{}}
	c.ids = func() (map[uint32]uint64, error) {
		if asked++; ids == nil {
			return nil, errors.New("its page is not there")
		}
		return ids, nil
	}
	device := func(wanted ...uint64) {
		t.Helper()
		for i, id := range c.uniquesOf([]uint32{0, 1, 2}) {
			if id != wanted[i] {
				t.Errorf("chip %d is %d, want %d", i, id, wanted[i])
			}
		}
	}
	device(0, 0, 0)
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	ids = map[uint32]uint64{0: 10, 1: 11}
	device(10, 11, 0)
	asked = 0
	device(10, 11, 0)
	if asked != 0 || !c.Uses(11) || c.Uses(12) {
		t.Errorf("asked %d times again", asked)
	}
}
