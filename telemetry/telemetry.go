// Package telemetry reads what the driver and the kernel tell of a host's chips and of the
// processes that hold them: sysfs, hwmon and proc files. It opens no device, which would
// wake a chip and count as a user of it, and keeps going where a file is absent or a read
// fails, as it does around a reset: what could not be read is not known.
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

// Value is a number that may not be known. It is 0 then.
type Value struct {
	N     int64
	Known bool
}

// Device is a chip with a node of its own in /dev/tenstorrent. Chips without PCIe, such as
// the second one of an n300, have none.
type Device struct {
	// Node is the number of the device's node.
	Node uint32
	// Card is its type, such as n300; Serial, ASIC (16 hex digits) and Firmware as the
	// driver tells them; Bus is its PCI address, Link its PCIe speed and width. All are
	// untrusted text, "" where they are not known.
	Card, Serial, ASIC, Firmware, Bus, Link string
	// Temperature and its limit are in millidegrees Celsius, Power and its limit in
	// microwatts, Current in mA, Voltage in mV, Fan in revolutions a minute.
	Temperature, TemperatureMax, Power, PowerMax, Current, Voltage, Fan Value
	// AI, AXI and ARC are clocks in MHz.
	AI, AXI, ARC Value
	// Heartbeat counts up while the chip's firmware runs, Trips how often it got too hot.
	Heartbeat, Trips Value
	// NUMA is the node of the host's memory that is next to it, -1 for none.
	NUMA Value
}

// System reads the files of a host below a folder. It may be used by several goroutines.
type System struct {
	root string
	self uint32

	mu sync.Mutex
	// fixed is what does not change while a device is there.
	fixed map[uint32]*fixed
	// cpu are the times that processes had used when they were looked at last.
	cpu map[uint32]cpuTime
	// users are names by number.
	users map[string]string
}

type fixed struct {
	device Device
	folder string
	hwmon  string
}

// maxDevices and maxFile bound what is read.
const (
	maxDevices = 256
	maxFile    = 64 << 10
)

// New reads below root, which is "/" but in tests.
func New(root string) *System {
	return &System{root: root, self: uint32(os.Getpid()), fixed: map[uint32]*fixed{}, cpu: map[uint32]cpuTime{}, users: map[string]string{}}
}

// Driver is the version of the kernel driver, "" where it is not loaded.
func (s *System) Driver() string { return s.text("sys/module/tenstorrent/version") }

// Devices are those that the driver has now, by number.
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
			f = s.look(node)
			// What was not there yet may come: right after a reset, say.
			if f.device.Card != "" && f.hwmon != "" {
				s.fixed[node] = f
			}
		}
		d := f.device
		d.AI = s.number(f.folder + "/tt_aiclk")
		d.AXI = s.number(f.folder + "/tt_axiclk")
		d.ARC = s.number(f.folder + "/tt_arcclk")
		d.Heartbeat = s.number(f.folder + "/tt_heartbeat")
		d.Trips = s.number(f.folder + "/tt_therm_trip_count")
		if f.hwmon != "" {
			d.Temperature = s.number(f.hwmon + "/temp1_input")
			if !d.Temperature.Known {
				delete(s.fixed, node) // the driver may have been loaded again, and the sensors be elsewhere
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

// nodes are the numbers of the devices that the driver has.
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

// look reads what does not change.
func (s *System) look(node uint32) *fixed {
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
	d.NUMA = s.number(pci + "/numa_node")
	if f.hwmon = s.sensors(pci); f.hwmon != "" {
		d.TemperatureMax, d.PowerMax = s.number(f.hwmon+"/temp1_max"), s.number(f.hwmon+"/power1_max")
	}
	return f
}

// sensors is the folder of a device's sensors, or "".
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

// text is a file's text without the line's end, or "".
func (s *System) text(path string) string {
	b, err := s.file(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// file is the start of a file, at most maxFile bytes.
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

// byPID sorts processes.
func byPID(a, b Process) int { return cmp.Compare(a.PID, b.PID) }
