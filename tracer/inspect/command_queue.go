package inspect

import (
	"encoding/binary"
	"fmt"
)

// DeviceOfQueue is the first thing that a command queue's words lead to which is a
// device: by its vptr, so that it does not matter where the queue keeps it.
func (in *Inspector) DeviceOfQueue(queue uint64) (uint64, error) {
	const words = 8
	var b [8 * words]byte
	if err := in.mem.ReadAt(b[:], queue); err != nil {
		return 0, err
	}
	for i := range words {
		word := binary.LittleEndian.Uint64(b[8*i:])
		if word == 0 || word%8 != 0 {
			continue
		}
		if _, _, _, err := in.Device(word); err == nil {
			return word, nil
		}
	}
	return 0, fmt.Errorf("looking for the device of the command queue at %#x: %w", queue, errNotADevice)
}
