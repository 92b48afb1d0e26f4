package inspect

import (
	"encoding/binary"
	"fmt"
)

// DeviceOfQueue returns the first device to which a word of the command queue leads. It recognizes a device by its
// vptr, so the queue's layout does not matter.
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
