package metal

import (
	"debug/elf"
	"encoding/binary"
)

// hidden are inline, hidden functions of Device, which a stripped library does not name. Each overrides a virtual
// function of IDevice, as does a function of MeshDevice that every library exports: both have the same index in their
// class's vtable.
var hidden = []struct{ device, mesh string }{{DeviceID, meshDeviceID}, {DeviceIsOpen, MeshIsOpen}}

// deviceByVtable returns the address of Device's function that overrides the same one as a function of MeshDevice.
func (l *Library) deviceByVtable(overrides string) (address uint64, ok bool) {
	mesh, device, known := l.symbols[MeshDeviceVtable], l.symbols[DeviceVtable], l.symbols[overrides]
	image, err := l.Image()
	if err != nil || mesh.Value == 0 || device.Value == 0 || known.Value == 0 {
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
		if function(mesh.Value+at) != known.Value {
			continue
		}
		address = function(device.Value + at)
		_, ok = l.fileOffset(address)
		return address, ok
	}
	return 0, false
}

// findHidden finds the functions that a stripped library does not name.
func (l *Library) findHidden() {
	if !l.IsRuntime() {
		return
	}
	for _, h := range hidden {
		if l.Defines(h.device) {
			continue
		}
		if address, ok := l.deviceByVtable(h.mesh); ok {
			l.symbols[h.device] = elfSymbol{Name: h.device, Value: address, Info: byte(elf.STT_FUNC)}
		}
	}
}
