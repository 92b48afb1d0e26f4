package telemetry

import (
	"strconv"
	"testing"
)

// host makes the driver's files of some cards.
func host(t *testing.T, cards ...string) *System {
	t.Helper()
	root, files := t.TempDir(), map[string]string{"dev/tenstorrent/by-id/x": ""}
	for n, card := range cards {
		id := strconv.Itoa(n)
		files["dev/tenstorrent/"+id] = ""
		folder := "sys/class/tenstorrent/tenstorrent!" + id
		files[folder+"/tt_card_type"] = card + "\n"
		device := "0x401e\n"
		if card[0] == 'p' {
			device = "0xb140\n"
		}
		files[folder+"/device/device"] = device
	}
	tree(t, root, files)
	return New(root)
}

func TestChips(t *testing.T) {
	if list := New(t.TempDir()).Chips(); len(list) != 0 {
		t.Errorf("without a driver: %+v", list)
	}
	for _, test := range []struct {
		cards []string
		chips int
		arch  string
		sized bool
	}{
		{[]string{"n150"}, 1, "wormhole_b0", true},
		{[]string{"n300"}, 2, "wormhole_b0", true},
		{[]string{"n300", "n300", "n300", "n300"}, 8, "wormhole_b0", true},
		{[]string{"p150a", "p150a"}, 2, "blackhole", true},
		{[]string{"p100a"}, 1, "blackhole", false},
		{[]string{"galaxy-wormhole"}, 1, "wormhole_b0", true},
		{[]string{"new"}, 1, "wormhole_b0", false},
		{[]string{"pgalaxy"}, 1, "blackhole", false},
	} {
		list := host(t, test.cards...).Chips()
		if len(list) != test.chips {
			t.Errorf("%v are %d chips", test.cards, len(list))
		}
		for _, c := range list {
			if c.Card != test.cards[0] || c.Arch != test.arch || (c.DRAMBytes > 0 && c.L1Banks > 0) != test.sized {
				t.Errorf("%v: %+v", test.cards, c)
			}
		}
	}
	// A Blackhole Galaxy is not a Wormhole one.
	root := t.TempDir()
	tree(t, root, map[string]string{"dev/tenstorrent/0": "", "sys/class/tenstorrent/tenstorrent!0/tt_card_type": "galaxy\n",
		"sys/class/tenstorrent/tenstorrent!0/device/device": "0xb140\n"})
	if list := New(root).Chips(); len(list) != 1 || list[0] != (Chip{Card: "galaxy", Arch: "blackhole"}) {
		t.Errorf("%+v", list)
	}
	// Ten nodes are in the order of their numbers.
	cards := make([]string, 11)
	for n := range cards {
		cards[n] = "n150"
	}
	cards[10] = "p150a"
	if list := host(t, cards...).Chips(); list[10].Card != "p150a" {
		t.Errorf("%+v", list)
	}
}
