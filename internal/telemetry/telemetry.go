// Package telemetry reads the driver's and the kernel's files about chips and the processes that have them open: sysfs,
// hwmon and procfs. It opens no device: that would raise the chip out of its low-power state, and the driver would count this
// program as a user. A file can be absent, and reading it can fail during a reset; then its value is unknown.
package telemetry

import (
	"cmp"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Value is a number that can be unknown; N is then 0.
type Value struct {
	N     int64
	Known bool
}

// Device is a chip with a device node in /dev/tenstorrent. Chips without PCIe, such as the
// second chip of an n300, have none.
type Device struct {
	// Node is the number of the device node.
	Node uint32
	// Card is the card type, such as n300. Serial, ASIC (16 hex digits) and Firmware are the driver's values, Bus is the PCI
	// address, Link the PCIe speed and width. All are untrusted text; "" is unknown.
	Card, Serial, ASIC, Firmware, Bus, Link string
	// Temperature and its limit are in millidegrees Celsius, Power and its limit in
	// microwatts, Current in mA, Voltage in mV, Fan in revolutions per minute.
	Temperature, TemperatureMax, Power, PowerMax, Current, Voltage, Fan Value
	// AI, AXI and ARC are clocks in MHz.
	AI, AXI, ARC Value
	// Trips counts thermal trips.
	Trips Value
}

// UniqueID returns the chip's unique ID, as the runtime has it; 0 if unknown.
func (d *Device) UniqueID() uint64 {
	n, _ := strconv.ParseUint(d.ASIC, 16, 64)
	return n
}

// galaxyTrays has, by the driver's card type, the upper 4 bits of the PCI bus numbers on a Galaxy's trays 1 to 4.
var galaxyTrays = map[string][4]uint64{
	"galaxy-wormhole":  {0xc, 0x8, 0x0, 0x4},
	"galaxy-blackhole": {0x0, 0x4, 0xc, 0x8},
}

// Place returns the chip's tray in a Galaxy, from 1, and its position there, from the PCI bus number. Both are 0 if unknown, as
// on all other cards.
func (d *Device) Place() (tray, position int) {
	trays, galaxy := galaxyTrays[d.Card]
	part := strings.Split(d.Bus, ":") // domain, bus, device.function
	if !galaxy || len(part) != 3 {
		return 0, 0
	}
	bus, err := strconv.ParseUint(part[1], 16, 8)
	i := slices.Index(trays[:], bus>>4)
	if err != nil || i < 0 || bus&0xf == 0 {
		return 0, 0
	}
	return i + 1, int(bus & 0xf)
}

// System reads a host's files below a root directory. It is safe for concurrent use.
type System struct {
	root string
	self uint32

	mu sync.Mutex
	// fixed maps the number of a device node to what does not change while the device exists.
	fixed map[uint32]*fixed
	// cpu maps PIDs to the CPU times of the last reading.
	cpu map[uint32]cpuTime
	// users maps user IDs to names.
	users map[string]string
	// arguments, if not nil, returns a process's arguments.
	arguments func(pid uint32) ([]string, error)
}

// fixed is what does not change while a device exists, and where its files are.
type fixed struct {
	device Device
	folder string
	hwmon  string
}

// maxDevices and maxFile bound how much is read.
const (
	maxDevices = 256
	maxFile    = 64 << 10
)

// New returns a System that reads below root, "/" outside of tests.
func New(root string) *System {
	return &System{root: root, self: uint32(os.Getpid()), fixed: map[uint32]*fixed{}, cpu: map[uint32]cpuTime{}, users: map[string]string{}}
}

// ReadArguments makes System read the arguments of processes with this function, not from /proc. Arguments are in a process's
// memory, and a process can make readers of its memory wait for ever. Call it before any other method.
func (s *System) ReadArguments(read func(pid uint32) ([]string, error)) { s.arguments = read }

// Devices returns the driver's present devices, by number.
func (s *System) Devices() []Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.nodes()
	for node := range s.fixed {
		if !slices.Contains(list, node) {
			delete(s.fixed, node)
		}
	}
	var out []Device
	for _, node := range list {
		f := s.fixed[node]
		if f == nil {
			f = s.readFixed(node)
			// Right after a reset, files can still be missing: read them again next time.
			if f.device.Card != "" && f.hwmon != "" {
				s.fixed[node] = f
			}
		}
		d := f.device
		d.AI = s.number(f.folder + "/tt_aiclk")
		d.AXI = s.number(f.folder + "/tt_axiclk")
		d.ARC = s.number(f.folder + "/tt_arcclk")
		d.Trips = s.number(f.folder + "/tt_therm_trip_count")
		if f.hwmon != "" {
			d.Temperature = s.number(f.hwmon + "/temp1_input")
			if !d.Temperature.Known {
				delete(s.fixed, node) // a reloaded driver has its sensors in another directory
			}
			d.Power = s.number(f.hwmon + "/power1_input")
			d.Current = s.number(f.hwmon + "/curr1_input")
			d.Voltage = s.number(f.hwmon + "/in0_input")
			d.Fan = s.number(f.hwmon + "/fan1_input")
		}
		out = append(out, d)
	}
	return out
}

// nodes returns the numbers of the driver's devices.
func (s *System) nodes() []uint32 {
	entries, err := os.ReadDir(filepath.Join(s.root, "sys/class/tenstorrent"))
	if err != nil {
		return nil
	}
	var list []uint32
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), "tenstorrent!")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(name, 10, 32); err == nil && len(list) < maxDevices {
			list = append(list, uint32(n))
		}
	}
	slices.Sort(list)
	return list
}

// readFixed reads what does not change while the device exists.
func (s *System) readFixed(node uint32) *fixed {
	folder := "sys/class/tenstorrent/tenstorrent!" + strconv.FormatUint(uint64(node), 10)
	f := &fixed{folder: folder}
	d := &f.device
	d.Node = node
	d.Card, d.Serial = s.text(folder+"/tt_card_type"), s.text(folder+"/tt_serial")
	d.ASIC, d.Firmware = s.text(folder+"/tt_asic_id"), s.text(folder+"/tt_fw_bundle_ver")
	pci := folder + "/device"
	if to, err := os.Readlink(filepath.Join(s.root, pci)); err == nil {
		d.Bus = filepath.Base(to)
	}
	if speed, width := s.text(pci+"/current_link_speed"), s.text(pci+"/current_link_width"); speed != "" && width != "" {
		d.Link = strings.TrimSuffix(speed, " PCIe") + " x" + width
	}
	if f.hwmon = s.sensors(pci); f.hwmon != "" {
		d.TemperatureMax, d.PowerMax = s.number(f.hwmon+"/temp1_max"), s.number(f.hwmon+"/power1_max")
	}
	return f
}

// sensors returns the hwmon directory of a device, or "".
func (s *System) sensors(pci string) string {
	entries, err := os.ReadDir(filepath.Join(s.root, pci, "hwmon"))
	if err != nil {
		return ""
	}
	for _, e := range entries {
		folder := pci + "/hwmon/" + e.Name()
		if name := s.text(folder + "/name"); name == "wormhole" || name == "blackhole" || name == "grayskull" {
			return folder
		}
	}
	return ""
}

// text returns a file's trimmed content, or "".
func (s *System) text(path string) string {
	b, err := s.file(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// file returns the start of a file, at most maxFile bytes.
func (s *System) file(path string) ([]byte, error) {
	f, err := os.Open(filepath.Join(s.root, path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

func (s *System) number(path string) Value {
	n, err := strconv.ParseInt(s.text(path), 10, 64)
	return Value{n, err == nil}
}

// byPID compares processes by PID.
func byPID(a, b Process) int { return cmp.Compare(a.PID, b.PID) }
