package metal

import (
	"debug/elf"
	"encoding/binary"
)

// deviceIDByVtable is where Device::id() const is, which is inline and hidden, so that a stripped
// library does not name it. It overrides a virtual function of IDevice, as MeshDevice::id() const
// does, which every library exports: both have the same place in their class's vtable.
func (l *Library) deviceIDByVtable() (address uint64, ok bool) {
	mesh, device, id := l.symbols[MeshDeviceVtable], l.symbols[DeviceVtable], l.symbols[meshDeviceID]
	image, err := l.Image()
	if err != nil || mesh.Value == 0 || device.Value == 0 || id.Value == 0 {
		return 0, false
	}
	function := func(at uint64) uint64 {
		var word [8]byte
		if image.ReadAt(word[:], at) != nil {
			return 0 // of another library
		}
		return binary.LittleEndian.Uint64(word[:])
	}
	const first, most = 16, 1 << 12 // behind the offset to top and the type; bytes
	for at := uint64(first); at+8 <= min(mesh.Size, device.Size, most); at += 8 {
		if function(mesh.Value+at) != id.Value {
			continue
		}
		address = function(device.Value + at)
		_, ok = l.fileOffset(address)
		return address, ok
	}
	return 0, false
}

// findHidden finds what a stripped library does not name.
func (l *Library) findHidden() {
	if !l.IsRuntime() || l.Defines(DeviceID) {
		return
	}
	if address, ok := l.deviceIDByVtable(); ok {
		l.symbols[DeviceID] = elfSymbol{Name: DeviceID, Value: address, Info: byte(elf.STT_FUNC)}
	}
}
