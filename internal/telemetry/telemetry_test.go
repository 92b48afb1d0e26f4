package telemetry

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"tt-memtrace/internal/cgroup"
)

// tree makes files below a folder; a text that begins with -> is a link.
func tree(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// card is a host with an n300 and a device of which next to nothing is known.
func card(t *testing.T) string {
	root := t.TempDir()
	device := "sys/class/tenstorrent/tenstorrent!0/"
	tree(t, root, map[string]string{
		"sys/devices/pci/0000:c1:00.0/current_link_speed":        "16.0 GT/s PCIe\n",
		"sys/devices/pci/0000:c1:00.0/current_link_width":        "16\n",
		"sys/devices/pci/0000:c1:00.0/hwmon/hwmon3/name":         "nvme\n",
		"sys/devices/pci/0000:c1:00.0/hwmon/hwmon4/name":         "wormhole\n",
		"sys/devices/pci/0000:c1:00.0/hwmon/hwmon4/temp1_input":  "45250\n",
		"sys/devices/pci/0000:c1:00.0/hwmon/hwmon4/temp1_max":    "75000\n",
		"sys/devices/pci/0000:c1:00.0/hwmon/hwmon4/power1_input": "22000000\n",
		"sys/devices/pci/0000:c1:00.0/hwmon/hwmon4/curr1_input":  "30000\n",
		"sys/devices/pci/0000:c1:00.0/hwmon/hwmon4/in0_input":    "740\n",
		device + "device":                              "->../../../devices/pci/0000:c1:00.0",
		device + "tt_card_type":                        "n300\n",
		device + "tt_serial":                           "0100014511704051\n",
		device + "tt_asic_id":                          "0123456789abcdef\n",
		device + "tt_fw_bundle_ver":                    "18.6.0.0\n",
		device + "tt_aiclk":                            "1000\n",
		device + "tt_axiclk":                           "900\n",
		"sys/class/tenstorrent/tenstorrent!7/tt_aiclk": "what\n",
		"sys/class/tenstorrent/nonsense/tt_aiclk":      "1\n",
	})
	return root
}

func known(n int64) Value { return Value{n, true} }

func TestDevicesOfTheDriver(t *testing.T) {
	s := New(card(t))
	want := []Device{{
		Node: 0, Card: "n300", Serial: "0100014511704051", ASIC: "0123456789abcdef", Firmware: "18.6.0.0", Bus: "0000:c1:00.0", Link: "16.0 GT/s x16",
		Temperature: known(45250), TemperatureMax: known(75000), Power: known(22000000), Current: known(30000), Voltage: known(740),
		AI: known(1000), AXI: known(900),
	}, {Node: 7}}
	for range 2 { // the second look has some of it kept
		if got := s.Devices(); !reflect.DeepEqual(got, want) {
			t.Errorf("got\n%+v, want\n%+v", got, want)
		}
	}
}

func TestValuesAndDevicesDisappear(t *testing.T) {
	root := card(t)
	s := New(root)
	s.Devices()
	clock := filepath.Join(root, "sys/class/tenstorrent/tenstorrent!0/tt_aiclk")
	for text, want := range map[string]Value{"540\n": known(540), "": {}, "-1\n": known(-1)} {
		if err := os.WriteFile(clock, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := s.Devices()[0].AI; got != want {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	os.Remove(clock)
	if got := s.Devices()[0]; got.AI.Known || !got.AXI.Known {
		t.Errorf("an absent file: %+v", got)
	}
	os.RemoveAll(filepath.Join(root, "sys/class/tenstorrent/tenstorrent!0"))
	if got := s.Devices(); len(got) != 1 || got[0].Node != 7 {
		t.Errorf("a device that is gone: %+v", got)
	}
}

// A driver that is loaded again between two looks calls the sensors otherwise.
func TestSensorsThatMove(t *testing.T) {
	root := card(t)
	s := New(root)
	s.Devices()
	sensors := filepath.Join(root, "sys/devices/pci/0000:c1:00.0/hwmon")
	if err := os.Rename(filepath.Join(sensors, "hwmon4"), filepath.Join(sensors, "hwmon5")); err != nil {
		t.Fatal(err)
	}
	if got := s.Devices()[0]; got.Temperature.Known || !got.AXI.Known {
		t.Errorf("a look too early: %+v", got)
	}
	if got := s.Devices()[0]; got.Temperature != known(45250) || got.Power != known(22000000) {
		t.Errorf("%+v", got)
	}
}

func TestMissingFiles(t *testing.T) {
	s := New(t.TempDir())
	if d := s.Devices(); len(d) != 0 {
		t.Errorf("%+v", d)
	}
	if p, err := s.Processes([]uint32{4711}); len(p) != 0 || err != nil {
		t.Errorf("%+v %v", p, err)
	}
}

// stat is the text of /proc/PID/stat of a process that used so many ticks and began at a tick.
func stat(name string, ticks, started string) string {
	return "41822 (" + name + ") S 1 1 1 0 -1 4194560 100 0 0 0 " + ticks + " 0 0 0 20 0 12 0 " + started + " 1000000 2048 18446744073709551615 1 1\n"
}

const id64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestProcessesThatHoldADevice(t *testing.T) {
	root := card(t)
	tree(t, root, map[string]string{
		"proc/uptime":                    "1000.00 2000.00\n",
		"proc/driver/tenstorrent/0/pids": "41822\n41822\n0\n999999\nnonsense\n",
		"proc/driver/tenstorrent/7/pids": "41822\n",
		"proc/41822/stat":                stat("py) (th\x1bon", "100", "50000"),
		"proc/41822/cmdline":             "python3\x00serve.py\x00--x\x00",
		"proc/41822/status":              "Name:\tpython\nState:\tD (disk sleep)\nUid:\t4000000000\t0\t0\t0\nNSpid:\t41822\t17\n",
		"proc/41822/cgroup":              "0::/system.slice/docker-" + id64 + ".scope\n",
		"proc/50231/stat":                stat("pytest", "5", "0"),
		"proc/self/ns/cgroup":            "->cgroup:[4026531835]",
	})
	s := New(root)
	list, err := s.Processes([]uint32{50231, 60000})
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	want := Process{
		PID: 41822, Devices: []uint32{0, 7}, Name: "py) (th\x1bon", Command: "python3 serve.py --x", User: "4000000000",
		Container: "docker 0123456789ab", InnerPID: 17, State: "disk sleep", Threads: known(12), Memory: known(2048 * int64(os.Getpagesize())), Age: 500 * time.Second,
	}
	if !reflect.DeepEqual(list[0], want) {
		t.Errorf("got\n%+v, want\n%+v", list[0], want)
	}
	if p := list[1]; p.PID != 50231 || len(p.Devices) != 0 || p.Container != "" || p.NoContainer || p.Name != "pytest" || p.CPU.Known {
		t.Errorf("one that was asked for: %+v", p)
	}
	// In no container is one whose control group is not one's, seen from the host.
	tree(t, root, map[string]string{"proc/50231/cgroup": "0::/user.slice\n"})
	if list, _ = s.Processes([]uint32{50231}); list[0].NoContainer || !list[1].NoContainer {
		t.Errorf("%+v", list)
	}
	if err := os.Remove(filepath.Join(root, "proc/self/ns/cgroup")); err != nil {
		t.Fatal(err)
	}
	tree(t, root, map[string]string{"proc/self/ns/cgroup": "->cgroup:[4026532000]"})
	if list, _ = s.Processes([]uint32{50231}); list[1].NoContainer {
		t.Errorf("seen from a container: %+v", list)
	}
	// Half a second of time on a processor, in one second.
	tree(t, root, map[string]string{"proc/uptime": "1001.00 2000.00\n", "proc/41822/stat": stat("python", "150", "50000")})
	if list, _ = s.Processes(nil); len(list) != 1 || list[0].CPU != known(500) {
		t.Errorf("%+v", list)
	}
	// The PID is another process's now.
	tree(t, root, map[string]string{"proc/uptime": "1002.00 2000.00\n", "proc/41822/stat": stat("python", "151", "100100")})
	if list, _ = s.Processes(nil); list[0].CPU.Known {
		t.Errorf("%+v", list)
	}
}

func TestHoldersWithAnOlderDriver(t *testing.T) {
	root := card(t)
	tree(t, root, map[string]string{
		"dev/tenstorrent/0": "", "proc/uptime": "10.0 10.0\n",
		"proc/41822/stat": stat("a", "1", "0"), "proc/41822/fd/3": "->/dev/tenstorrent/0", "proc/41822/fd/4": "->/dev/tenstorrent/0", "proc/41822/fd/5": "->/dev/null",
		"proc/50231/stat": stat("b", "1", "0"), "proc/50231/fd/3": "->/dev/tenstorrent/by-id/x",
		"proc/self/stat": stat("c", "1", "0"),
	})
	list, err := New(root).Processes(nil)
	if err != nil || len(list) != 1 || list[0].PID != 41822 || !reflect.DeepEqual(list[0].Devices, []uint32{0}) {
		t.Errorf("%+v %v", list, err)
	}
}

func TestThisProcessIsNotListed(t *testing.T) {
	root := card(t)
	s := New(root)
	s.self = 41822
	tree(t, root, map[string]string{"proc/driver/tenstorrent/0/pids": "41822\n", "proc/driver/tenstorrent/7/pids": "", "proc/41822/stat": stat("me", "1", "0")})
	if list, err := s.Processes([]uint32{41822}); len(list) != 0 || err != nil {
		t.Errorf("%+v %v", list, err)
	}
	// And what it reads of a real host is itself.
	real := New("/")
	real.self = 0
	list, err := real.Processes([]uint32{uint32(os.Getpid())})
	if err != nil && os.Geteuid() == 0 {
		t.Error(err)
	}
	found := false
	for _, p := range list {
		found = found || p.PID == uint32(os.Getpid()) && p.Threads.N > 0 && p.Memory.N > 0 && p.Command != "" && p.User != ""
	}
	if !found {
		t.Errorf("this process is not as it is: %+v", list)
	}
}

func TestContainers(t *testing.T) {
	pod := "01234567-89ab-cdef-0123-456789abcdef"
	for text, want := range map[string]string{
		"":       "",
		"0::/\n": "",
		"0::/user.slice/user-1000.slice/session-2.scope\n":        "",
		"0::/system.slice/docker-" + id64 + ".scope\n":            "docker 0123456789ab",
		"12:pids:/docker/" + id64 + "\n11:cpu:/x\n":               "docker 0123456789ab",
		"0::/machine.slice/libpod-" + id64 + ".scope/container\n": "podman 0123456789ab",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice/cri-containerd-" + id64 + ".scope\n": "pod 01234567/0123456789ab",
		"0::/kubepods/besteffort/pod" + pod + "/" + id64 + "\n":                                                "pod 01234567/0123456789ab",
		"0::/docker/" + strings.Repeat("a", 64) + "/kubelet/kubepods/besteffort/pod" + pod + "/" + id64 + "\n": "pod 01234567/0123456789ab",
		"0::/docker/" + strings.Repeat("a", 64) + "/docker/" + id64 + "\n":                                     "docker 0123456789ab",
		"0::/system.slice/crio-" + id64 + ".scope\n":                                                           "crio 0123456789ab",
		"0::/lxc/web-1/init.scope\n":                                                                           "lxc web-1",
		"0::/lxc.payload.web-1\n":                                                                              "lxc web-1",
		"0::/docker/short\n":                                                                                   "",
		"nonsense":                                                                                             "",
		"0::/\x1b[31m/docker-" + id64[:63] + "\x1b.scope":                                                      "",
	} {
		if got := container(cgroup.Parse(text)); got != want {
			t.Errorf("container(%q) = %q, want %q", text, got, want)
		}
	}
}

// A Galaxy's trays and positions show in its bus numbers; those of other cards say nothing.
func TestPlaceInAGalaxy(t *testing.T) {
	for _, c := range []struct {
		card, bus      string
		tray, position int
	}{
		{"galaxy-wormhole", "0000:c1:00.0", 1, 1}, {"galaxy-wormhole", "0000:88:00.0", 2, 8}, {"galaxy-wormhole", "0000:03:00.0", 3, 3},
		{"galaxy-wormhole", "0000:44:00.0", 4, 4}, {"galaxy-blackhole", "0000:01:00.0", 1, 1}, {"galaxy-blackhole", "0000:4f:00.0", 2, 15},
		{"galaxy-blackhole", "0001:c2:00.0", 3, 2}, {"galaxy-blackhole", "0000:82:00.0", 4, 2},
		{"galaxy-wormhole", "0000:11:00.0", 0, 0}, {"galaxy-wormhole", "0000:c0:00.0", 0, 0}, {"galaxy-wormhole", "", 0, 0},
		{"galaxy-wormhole", "0000:xx:00.0", 0, 0}, {"galaxy-wormhole", "0000:1c1:00.0", 0, 0}, {"n300", "0000:c1:00.0", 0, 0}, {"", "0000:c1:00.0", 0, 0},
	} {
		d := Device{Card: c.card, Bus: c.bus}
		if tray, position := d.Place(); tray != c.tray || position != c.position {
			t.Errorf("%s %q: tray %d, position %d", c.card, c.bus, tray, position)
		}
	}
}
