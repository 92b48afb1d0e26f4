package metal

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"tt-memtrace/test/fixture"
)

func TestEmulatedInstructions(t *testing.T) {
	for _, test := range []struct {
		name, code string
		want       bool
	}{
		{"push rax", "50", true},
		{"push rbp", "55", true},
		{"push r8", "4150", true},
		{"push r15", "4157", true},
		{"push imm8", "6a01", false},
		{"push imm32", "6801000000", false},
		{"push mem", "ff7508", false},
		{"push rax, long form", "fff0", false},
		{"push r15, long form", "41fff7", false},
		{"push rbp with a needless REX", "4055", false},
		{"push rbp with REX.W", "4855", false},
		{"push r15 with REX.WB", "4957", false},
		{"push bp", "6655", false},
		{"push rbp with a segment", "2e55", false},
		{"push fs", "0fa0", false},
		{"push gs", "0fa8", false},
		{"pushf", "9c", false},
		{"nop", "90", true},
		{"nop with 66", "6690", false},
		{"nop of 3 bytes", "0f1f00", false},
		{"nop of 5 bytes", "0f1f440000", false},
		{"nop of 9 bytes", "660f1f840000000000", false},
		{"xchg r8, rax", "4990", false},
		{"pause", "f390", false},
		{"jmp rel8", "eb10", true},
		{"jmp rel32", "e900010000", true},
		{"jmp mem", "ff2500010000", false},
		{"jmp rax", "ffe0", false},
		{"bnd jmp", "f2e900010000", false},
		{"je rel8", "7410", false},
		{"call rel32", "e800010000", true},
		{"call rel32 with 66", "66e800010000", false},
		{"call mem", "ff1500010000", false},
		{"call rax", "ffd0", false},
		{"endbr64", "f30f1efa", false},
		{"mov rbp, rsp", "4889e5", false},
		{"mov rax, [rdi]", "488b07", false},
		{"sub rsp, 8", "4883ec08", false},
		{"lea", "488d0510000000", false},
		{"xor eax, eax", "31c0", false},
		{"lock add", "f0480107", false},
		{"ret", "c3", false},
		{"int3", "cc", false},
		{"ud2", "0f0b", false},
		{"hlt", "f4", false},
		{"syscall", "0f05", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, err := hex.DecodeString(test.code)
			if err != nil {
				t.Fatal(err)
			}
			inst, err := x86asm.Decode(append(code, make([]byte, 8)...), 64)
			if err != nil {
				if test.want {
					t.Fatal(err)
				}
				return
			}
			if got := emulated(inst); got != test.want {
				t.Errorf("%s: emulated %t, want %t", inst, got, test.want)
			}
		})
	}
}

func FuzzEmulated(f *testing.F) {
	f.Add([]byte{0x55})
	f.Add([]byte{0x41, 0x57})
	f.Add([]byte{0xe8, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, code []byte) {
		inst, err := x86asm.Decode(code, 64)
		if err != nil || !emulated(inst) {
			return
		}
		// What the kernel's own decoder takes for one of these.
		switch b := code[:inst.Len]; {
		case len(b) == 1 && (b[0]&0xf8 == 0x50 || b[0] == 0x90):
		case len(b) == 2 && b[0] == 0x41 && b[1]&0xf8 == 0x50:
		case b[len(b)-2] == 0xeb, len(b) >= 5 && b[len(b)-5]&0xfe == 0xe8:
		default:
			t.Errorf("% x: %v is not emulated", b, inst)
		}
	})
}

// lackedPoints need functions that the fixture lacks: they belong to old releases, to sub-device managers with their
// own L1, and to L1 outside of the allocator. test/e2e tests the last two on the real runtime.
var lackedPoints = []string{"program enqueued", "memory resized", "persistent L1 changed"}

// fixturePoints are the points of the first way that the fixture has.
var fixturePoints = func() (names []string) {
	for _, p := range Points {
		if !slices.Contains(lackedPoints, p.Name) && (p.Way == 0 || p.Way&Ways[0] != 0) {
			names = append(names, p.Name)
		}
	}
	return names
}()

func TestFixtureHasWhatIsRequired(t *testing.T) {
	for _, p := range Points {
		if p.Need == Required && (p.Way == 0 || p.Way&Ways[0] != 0) && !slices.Contains(fixturePoints, p.Name) {
			t.Errorf("it lacks %q", p.Name)
		}
	}
}

// probed are the names of the points that were found, and of those that were
// not but are in the fixture.
func probed(c *Coverage) (found, missing []string) {
	for _, p := range c.Probes {
		found = append(found, p.Point.Name)
	}
	for _, p := range c.Missing {
		if slices.Contains(fixturePoints, p.Name) {
			missing = append(missing, p.Name)
		}
	}
	return found, missing
}

func TestCoverFindsEveryPoint(t *testing.T) {
	for _, test := range []struct {
		name    string
		build   fixture.Build
		skipped uint64
	}{
		{"layout A", fixture.LayoutA, 0},
		{"layout B", fixture.LayoutB, 0},
		{"not optimized", fixture.WithFlags("-O0"), 0},
		{"optimized", fixture.WithFlags("-O2"), 0},
		{"endbr64", fixture.WithFlags("-O2 -fcf-protection=full"), 4},
		{"stripped", fixture.Build{Strip: true}, 0},
		{"no build-id", fixture.WithFlags("-Wl,--build-id=none"), 0},
		{"code behind data", fixture.WithFlags("-Wl,-Ttext-segment=0x600000"), 0},
		{"in one segment", fixture.WithFlags("-Wl,-z,noseparate-code"), 0},
		{"packed relocations", fixture.WithFlags("-Wl,-z,pack-relative-relocs"), 0},
		{"clang", fixture.Build{Compiler: "clang++", Flags: []string{"-O2"}}, 0},
		{"hidden symbols", fixture.Build{Hide: []string{allocateInBlock[0], trackDeallocate[0], deallocateBuffers[0]}}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := open(t, fixture.StillOf(t, test.build))
			c, err := l.Cover()
			if err != nil {
				t.Fatal(err)
			}
			found, missing := probed(c)
			// Two each for the device points: Device and MeshDevice.
			if len(missing) > 0 || len(found) != len(fixturePoints)+2 {
				t.Errorf("found %q, missing %q", found, missing)
			}
			for _, p := range c.Probes {
				if p.Skipped != test.skipped || !p.Emulated || !strings.HasPrefix(p.Instruction, "push") {
					t.Errorf("%s: %q, %d bytes skipped", p.Symbol, p.Instruction, p.Skipped)
				}
				if strings.Contains(p.Symbol, ".") {
					t.Errorf("%s is only a part of a function", p.Symbol)
				}
			}
			if has := l.BuildID != ""; has == (test.name == "no build-id") {
				t.Errorf("build-id %q", l.BuildID)
			}
			if !l.IsRuntime() {
				t.Error("it does not count as the runtime")
			}
		})
	}
}

func TestCoverTellsWhichPointIsMissing(t *testing.T) {
	for _, p := range Points {
		if !slices.Contains(fixturePoints, p.Name) {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			l := open(t, fixture.StillOf(t, fixture.Build{Hide: p.Symbols, Strip: true}))
			c, err := l.Cover()
			if _, missing := probed(c); len(missing) != 1 || missing[0] != p.Name {
				t.Errorf("missing are %q", missing)
			}
			// Without one that is required nothing is attached; without another, less is known.
			if p.Need == Required {
				refused(t, err, p.Name, p.Symbols[0], l.Path, l.BuildID)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// A library is traced in the first way of which it has all points: one that reports allocations
// to its graph tracker, and frees to observers alone, to which it reports allocations as well, by these.
func TestCoverTakesTheFirstWholeWay(t *testing.T) {
	for _, test := range []struct {
		name  string
		flags string
		hide  []string
		way   Way
	}{
		{"both", "", nil, ByGraphTracker},
		{"both, behind a pointer", "-DIMPL -DLAYOUT_B", nil, ByGraphTracker},
		{"no allocations", "", TrackAllocate, ByObserver},
		{"no frees", "", trackDeallocate, ByObserver},
		{"inlined", "-DIMPL -DINLINED", nil, ByObserver},
		{"inlined, behind a pointer", "-O2 -DIMPL -DINLINED -DLAYOUT_B", nil, ByObserver},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := open(t, fixture.StillOf(t, fixture.Build{Flags: append(strings.Fields(test.flags), "-DOBSERVER"), Hide: test.hide, Strip: true}))
			c, err := l.Cover()
			if err != nil || c.Way != test.way || !l.IsRuntime() || !KnowsRuntime(l.Path) {
				t.Errorf("by %v, %v", c.Way, err)
			}
			for _, p := range c.Probes {
				if p.Point.Way != 0 && p.Point.Way&test.way == 0 {
					t.Errorf("%s belongs to another way", p.Point.Name)
				}
			}
		})
	}
}

// Symbols that nothing calls are refused, where there is no other way.
func TestCoverRefusesWhatWouldNeverBeHit(t *testing.T) {
	c, err := open(t, fixture.StillOf(t, fixture.WithFlags("-DIMPL -DINLINED"))).Cover()
	refused(t, err, "buffer allocated", "does not call", TrackAllocate[0])
	if _, missing := probed(c); !slices.Equal(missing, []string{"buffer allocated", "buffer freed"}) {
		t.Errorf("missing are %q", missing)
	}
}

// A function's new name at the head of its list keeps the releases that have an older one.
func TestNewNamesKeepOlderReleases(t *testing.T) {
	want, err := open(t, fixture.StillOf(t, fixture.WithFlags("-DIMPL"))).Cover()
	if err != nil {
		t.Fatal(err)
	}
	table := Points
	defer func() { Points = table }()
	Points = slices.Clone(table)
	for i := range Points {
		Points[i].Symbols = append([]string{"_ZN2tt8tt_metal7renamedEv"}, Points[i].Symbols...)
	}
	got, err := open(t, fixture.StillOf(t, fixture.WithFlags("-DIMPL"))).Cover()
	if err != nil {
		t.Fatal(err)
	}
	have, missing := probed(got)
	if all, none := probed(want); got.Way != want.Way || !slices.Equal(have, all) || !slices.Equal(missing, none) {
		t.Errorf("by %v: %q, without %q; before, by %v: %q, without %q", got.Way, have, missing, want.Way, all, none)
	}
}

// What a release does not have it does not lack; what it has without a function to probe, it does.
func TestCoverOfMissingFeatures(t *testing.T) {
	for _, test := range []struct {
		name    string
		hide    []string
		lacks   string
		covered bool
	}{
		{"dataflow buffers", append([]string{ReserveLocal, MarkAddress}, dataflowSymbols...), "dataflow buffers", true},
		{"dataflow buffers that cannot be followed", []string{ReserveLocal, MarkAddress}, "dataflow buffers", false},
		{"scratchpads", append([]string{scratchpads}, ScratchpadHandles...), "scratchpads", true},
		{"scratchpads that no function reports", []string{CommonArguments}, "scratchpads", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, err := open(t, fixture.StillOf(t, fixture.Build{Hide: test.hide, Strip: true})).Cover()
			if err != nil {
				t.Fatal(err)
			}
			if got := c.NotCovered(); slices.Contains(got, test.lacks) == test.covered {
				t.Errorf("not covered are %q", got)
			}
		})
	}
}

func TestCoverRefusesWhatWouldBeSingleStepped(t *testing.T) {
	l := open(t, fixture.StillOf(t, fixture.WithFlags("-O2 -DBARE_FREED")))
	c, err := l.Cover()
	refused(t, err, "buffer freed", "add", "single-step")
	if _, missing := probed(c); len(missing) != 1 || missing[0] != "buffer freed" {
		t.Errorf("missing are %q", missing)
	}
	l = open(t, fixture.StillOf(t, fixture.WithFlags("-O2 -DBARE_BANKS")))
	c, err = l.Cover()
	if _, missing := probed(c); err != nil || len(missing) != 1 || missing[0] != "bank space taken" {
		t.Errorf("missing are %q, error %v", missing, err)
	}
}
