package telemetry

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Chip is a chip of the host, from the driver's files. Unknown fields are 0 or "".
type Chip struct {
	// Card is the type of its card, such as n300.
	Card string
	// Arch is its architecture: wormhole_b0, blackhole or grayskull.
	Arch string
	// The runtime by default has DRAMBanks banks of DRAMBytes each and L1Banks banks of L1Bytes each for buffers on such a
	// card.
	DRAMBanks, L1Banks uint32
	DRAMBytes, L1Bytes uint64
}

// arches maps PCI device IDs to architectures.
var arches = map[string]string{"0xfaca": "grayskull", "0x401e": "wormhole_b0", "0xb140": "blackhole"}

// cards lists what release 0.81.1 has for buffers on a mock of each card, with the sizes of L1_SMALL and TRACE that
// test/rig/loop.py requests: some thousandths of the memory. On hardware the number of L1 banks depends on how many cores are
// harvested.
var cards = []struct {
	prefix, arch       string
	dramBanks, l1Banks uint32
	dramBytes, l1Bytes uint64
}{
	{"n150", "wormhole_b0", 12, 64, 1072340928, 1360544},
	{"n300", "wormhole_b0", 12, 64, 1072340928, 1360544},
	{"galaxy", "wormhole_b0", 12, 72, 1072340928, 1360544},
	{"tt-galaxy", "wormhole_b0", 12, 72, 1072340928, 1360544},
	{"p150", "blackhole", 8, 110, 4276617088, 1428352},
}

// Chips returns the host's chips in the order of the runtime's numbers: first those with a node in /dev/tenstorrent, then the
// second chip of each n300, which has none.
func (s *System) Chips() []Chip {
	var local, remote []Chip
	for _, node := range s.deviceNodes() {
		folder := "sys/class/tenstorrent/tenstorrent!" + strconv.Itoa(node)
		c := Chip{Card: s.text(folder + "/tt_card_type"), Arch: arches[s.text(folder+"/device/device")]}
		for _, k := range cards {
			if strings.HasPrefix(c.Card, k.prefix) && (c.Arch == "" || c.Arch == k.arch) {
				c.Arch = k.arch
				c.DRAMBanks, c.DRAMBytes, c.L1Banks, c.L1Bytes = k.dramBanks, k.dramBytes, k.l1Banks, k.l1Bytes
				break
			}
		}
		local = append(local, c)
		if strings.HasPrefix(c.Card, "n300") {
			remote = append(remote, c)
		}
	}
	return append(local, remote...)
}

// deviceNodes returns the numbers of the nodes in /dev/tenstorrent, ascending. A container has only those that it was given.
func (s *System) deviceNodes() []int {
	entries, err := os.ReadDir(filepath.Join(s.root, "dev/tenstorrent"))
	if err != nil {
		return nil
	}
	var list []int
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 16); err == nil && len(list) < maxDevices {
			list = append(list, int(n))
		}
	}
	slices.Sort(list)
	return list
}
