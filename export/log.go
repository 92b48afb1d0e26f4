package export

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"tt-memtrace/aggregator"
)

// Logger writes one line a change. Its errors are sticky: see Err.
type Logger struct {
	w    io.Writer
	wall func(monotonic uint64) time.Time
	json *json.Encoder
	err  error
}

// NewLogger writes the words of the original allocation server, one line a
// chip, so that what people grep for stays where it was; or, with asJSON, one
// LogLine a change. Wall turns CLOCK_MONOTONIC ns into the time of day.
func NewLogger(w io.Writer, asJSON bool, wall func(monotonic uint64) time.Time) *Logger {
	l := &Logger{w: w, wall: wall}
	if asJSON {
		l.json = json.NewEncoder(w)
		l.json.SetEscapeHTML(false)
	}
	return l
}

// LogLine is one change as `log --json` prints it. All sizes are in bytes.
type LogLine struct {
	// When it happened.
	Time time.Time `json:"time"`
	// What happened: a buffer was allocated or freed.
	Event string `json:"event" jsonschema:"enum=alloc,enum=free"`
	// The process's PID.
	PID uint32 `json:"pid"`
	// The thread's id; null where no thread of the process did it.
	TID *uint32 `json:"tid" jsonschema:"nullable"`
	// The memory that it lies in: dram, l1, l1_small, trace, system_memory (the host's).
	Memory string `json:"memory"`
	// The buffer's own size, bytes on each chip.
	Size uint64 `json:"size"`
	// What each bank of each chip lost to it, bytes; null where unknown.
	PerBank *uint64 `json:"per_bank" jsonschema:"nullable"`
	// Where it starts in each bank, bytes.
	Address uint64 `json:"address"`
	// The buffer's id in hex, unique in its process while it lives.
	Buffer string `json:"buffer" jsonschema:"pattern=^0x[0-9a-f]+$"`
	// Numbers of the chips that it lies on; empty where unknown.
	Chips []uint32 `json:"chips"`
	// True if the chips' numbers are the process's own (TT_VISIBLE_DEVICES), not the host's.
	Private bool `json:"private,omitempty"`
	// True if it was freed by no call of its own: with its allocator or process, or replaced.
	Implicit bool `json:"implicit,omitempty"`
	// True if the allocation of the buffer that is freed was not seen.
	Unknown bool `json:"unknown,omitempty"`
}

// Err is the first error that writing met.
func (l *Logger) Err() error { return l.err }

// Change writes a change.
func (l *Logger) Change(c aggregator.Change) {
	if l.err != nil {
		return
	}
	if l.json != nil {
		l.err = l.json.Encode(l.line(c))
		return
	}
	for _, chip := range c.Chips {
		l.text(c, fmt.Sprint(chip.Number))
	}
	if len(c.Chips) == 0 {
		l.text(c, "?")
	}
}

func (l *Logger) line(c aggregator.Change) LogLine {
	line := LogLine{
		Time: l.wall(c.Time), Event: "alloc", PID: c.PID, Memory: key(c.Buffer.Memory),
		Size: c.Buffer.Size, Address: c.Buffer.Address, Buffer: fmt.Sprintf("%#x", c.Buffer.ID),
		Chips: []uint32{}, Implicit: c.Implicit, Unknown: c.Unknown,
	}
	if c.Freed {
		line.Event = "free"
	}
	if c.TID != 0 {
		line.TID = &c.TID
	}
	if c.Buffer.PerBank != 0 {
		line.PerBank = &c.Buffer.PerBank
	}
	for _, chip := range c.Chips {
		line.Chips = append(line.Chips, chip.Number)
		line.Private = line.Private || chip.Space != 0
	}
	return line
}

// text keeps the original's words and their places.
func (l *Logger) text(c aggregator.Change, device string) {
	if l.err != nil {
		return
	}
	b := c.Buffer
	var err error
	switch {
	case c.Unknown:
		_, err = fmt.Fprintf(l.w, "⚠ [PID %d] Deallocation for unknown buffer 0x%x on device %s (allocated before tracking started)\n", c.PID, b.ID, device)
	case c.Freed:
		_, err = fmt.Fprintf(l.w, "✗ [PID %d] Freed buffer 0x%x on device %s (%d bytes, FINAL)\n", c.PID, b.ID, device, b.Size)
	default:
		_, err = fmt.Fprintf(l.w, "✓ [PID %d] Allocated %d bytes of %s on device %s (buffer_id=0x%x)\n", c.PID, b.Size, b.Memory, device, b.ID)
	}
	l.err = err
}
