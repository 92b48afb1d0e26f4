package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tt-memtrace/test/rig"
)

// entry is a line of log --json.
type entry struct {
	Time     time.Time `json:"time"`
	Event    string    `json:"event"`
	PID      int       `json:"pid"`
	TID      int       `json:"tid"`
	Memory   string    `json:"memory"`
	Size     uint64    `json:"requested_bytes"`
	PerBank  *uint64   `json:"per_bank_bytes"`
	Address  uint64    `json:"address"`
	Buffer   string    `json:"buffer"`
	Chips    []uint32  `json:"chips"`
	Private  *int      `json:"private_to"`
	Implicit bool      `json:"implicit"`
	Unknown  bool      `json:"unmatched"`
}

// entries are the lines that are about buffers. Every line has to be JSON.
func entries(t *testing.T, out string) []entry {
	t.Helper()
	var list []entry
	for _, line := range lines(out) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if e.Event != "alloc" && e.Event != "free" {
			continue // of something else than buffers
		}
		if e.PID == 0 || e.TID == 0 && !e.Implicit || e.Memory == "" || e.Buffer == "" {
			t.Fatalf("an odd line: %q", line)
		}
		list = append(list, e)
	}
	return list
}

// logTotals are what the lines of a log add up to.
type logTotals struct {
	live          map[string]entry
	allocs, frees int
	pids          []int
}

// addUp adds the lines up, and fails where they do not fit together.
func addUp(t *testing.T, list []entry) logTotals {
	t.Helper()
	b := logTotals{live: map[string]entry{}}
	for i, e := range list {
		if !slices.Contains(b.pids, e.PID) {
			b.pids = append(b.pids, e.PID)
		}
		key := fmt.Sprint(e.PID, e.Buffer)
		old, held := b.live[key]
		switch {
		case e.Unknown:
			t.Fatalf("line %d is of a buffer from before: %+v", i, e)
		case e.Event == "alloc" && held:
			t.Fatalf("line %d allocates what is held: %+v, %+v", i, e, old)
		case e.Event == "alloc":
			b.allocs++
			b.live[key] = e
		case !held:
			t.Fatalf("line %d frees what is not held: %+v", i, e)
		case e.Size != old.Size || e.Memory != old.Memory || !slices.Equal(e.Chips, old.Chips):
			t.Fatalf("line %d frees another buffer: %+v, %+v", i, e, old)
		default:
			b.frees++
			delete(b.live, key)
		}
	}
	return b
}

// liveBuffer is a live buffer, as the log and as the runtime list it.
type liveBuffer struct {
	memory           string
	address, perBank uint64
	chips            string
}

func compareLive(a, b liveBuffer) int {
	return cmp.Or(cmp.Compare(a.chips, b.chips), cmp.Compare(a.memory, b.memory), cmp.Compare(a.address, b.address))
}

func onChips(chips []uint32) string {
	chips = slices.Clone(chips)
	slices.Sort(chips)
	return fmt.Sprint(chips)
}

// liveBuffers lists what the log says is live.
func (b logTotals) liveBuffers() []liveBuffer {
	var list []liveBuffer
	for _, e := range b.live {
		h := liveBuffer{memory: e.Memory, address: e.Address, chips: onChips(e.Chips)}
		if e.PerBank != nil {
			h.perBank = *e.PerBank
		}
		list = append(list, h)
	}
	slices.SortFunc(list, compareLive)
	return list
}

// theirs lists what the runtime says is live.
func theirs(m rig.Message) []liveBuffer {
	var list []liveBuffer
	for _, d := range m.Devices {
		for _, b := range d.Buffers {
			list = append(list, liveBuffer{strings.ToLower(b.Type), b.Address, b.ReservedPerBank, onChips(d.Chips)})
		}
	}
	slices.SortFunc(list, compareLive)
	return list
}

// agrees waits until the log's lines add up to what the runtime reports at a
// rest point, buffer by buffer.
func agrees(t *testing.T, log *session, m rig.Message) logTotals {
	t.Helper()
	want := theirs(m)
	var b logTotals
	if !log.out.within(patience, func(out string) bool {
		b = addUp(t, entries(t, out))
		return slices.Equal(b.liveBuffers(), want)
	}) {
		t.Fatalf("rest %d: the runtime holds %d buffers, by the log it is %d:\n%v\n%v\n%s",
			m.N, len(want), len(b.live), want, b.liveBuffers(), log.err)
	}
	return b
}

// Lines of the plain log.
var (
	allocated = regexp.MustCompile(`^✓ \[PID (\d+)\] Allocated (\d+) bytes of (\S+) on device (\d+) \(buffer_id=(0x[0-9a-f]+)\)$`)
	freed     = regexp.MustCompile(`^✗ \[PID (\d+)\] Freed buffer (0x[0-9a-f]+) on device (\d+) \((\d+) bytes, FINAL\)$`)
)

// counted is how often the plain log has a device allocated on and freed on.
func counted(t *testing.T, out string) (allocs, frees map[string]int) {
	t.Helper()
	allocs, frees = map[string]int{}, map[string]int{}
	for _, line := range lines(out) {
		if m := allocated.FindStringSubmatch(line); m != nil {
			allocs[m[4]]++
		} else if m := freed.FindStringSubmatch(line); m != nil {
			frees[m[3]]++
		} else if strings.Contains(line, "Allocated") || strings.Contains(line, "Freed") || strings.Contains(line, "unknown") {
			t.Fatalf("an odd line: %q", line)
		}
	}
	return allocs, frees
}

// status is what these tests read of status --json.
type status struct {
	Schema    int       `json:"schema"`
	Time      time.Time `json:"time"`
	Exact     bool      `json:"exact"`
	Events    uint64    `json:"events"`
	Lost      uint64    `json:"events_lost"`
	Chips     []chip    `json:"chips"`
	Processes []process `json:"processes"`
}

type chip struct {
	Chip   uint32         `json:"chip"`
	Arch   *string        `json:"arch"`
	PIDs   []int          `json:"pids"`
	Memory map[string]use `json:"memory"`
}

type use struct {
	Requested     uint64  `json:"requested_bytes"`
	Reserved      *uint64 `json:"reserved_bytes"`
	PeakRequested uint64  `json:"peak_requested_bytes"`
	PeakReserved  *uint64 `json:"peak_reserved_bytes"`
	Buffers       uint64  `json:"buffers"`
	Capacity      *uint64 `json:"capacity_bytes"`
}

type process struct {
	PID            int    `json:"pid"`
	Command        string `json:"command"`
	Late           bool   `json:"late"`
	Buffers        uint64 `json:"buffers"`
	Allocs         uint64 `json:"allocations"`
	Frees          uint64 `json:"frees"`
	UnmatchedFrees uint64 `json:"unmatched_frees"`
	Found          uint64 `json:"preexisting_buffers"`
	Chips          []chip `json:"chips"`
	Source         string `json:"source"`
	Reasons        []struct {
		Code string `json:"code"`
	} `json:"reasons"`
}

// snapshots decodes whole snapshots, of which there may be several; the last
// one may still be being written.
func snapshots(t *testing.T, out string) []status {
	t.Helper()
	var list []status
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var s status
		err := d.Decode(&s)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return list
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, out)
		}
		if s.Schema != 1 || s.Time.IsZero() {
			t.Fatalf("an odd snapshot: %+v", s)
		}
		list = append(list, s)
	}
}

// one is the only snapshot of an output.
func one(t *testing.T, out string) status {
	t.Helper()
	list := snapshots(t, out)
	if len(list) != 1 {
		t.Fatalf("%d snapshots in:\n%s", len(list), out)
	}
	return list[0]
}

// empty checks that all chips are there and hold nothing, but did so once.
func (s status) empty(t *testing.T, chips int) {
	t.Helper()
	if !s.Exact || s.Lost != 0 || s.Events == 0 || len(s.Chips) != chips {
		t.Errorf("exact %v, %d lost of %d events, %d chips", s.Exact, s.Lost, s.Events, len(s.Chips))
	}
	for i, c := range s.Chips {
		if c.Chip != uint32(i) || c.Arch == nil || *c.Arch != "wormhole_b0" {
			t.Errorf("chip %d: %+v", i, c)
		}
		for memory, u := range c.Memory {
			if u.Requested != 0 || u.Buffers != 0 || u.Reserved == nil || *u.Reserved != 0 {
				t.Errorf("chip %d %s holds %+v", c.Chip, memory, u)
			}
			if u.Capacity == nil || u.PeakReserved == nil {
				t.Errorf("chip %d %s: unknown numbers in %+v", c.Chip, memory, u)
			} else if u.PeakRequested == 0 || *u.PeakReserved < u.PeakRequested || *u.Capacity < *u.PeakReserved {
				t.Errorf("chip %d %s: at most %d requested, %d reserved, of %d", c.Chip, memory, u.PeakRequested, *u.PeakReserved, *u.Capacity)
			}
		}
	}
}
