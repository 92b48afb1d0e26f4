package export

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tt-memtrace/aggregator"
)

// Logger writes a line for each change. After an error it writes nothing more: see Err.
type Logger struct {
	// Site, which may be nil, names the call site of a stack. Set it before the first event.
	Site func(*aggregator.Stack) string

	w    io.Writer
	wall func(monotonic uint64) time.Time
	json *json.Encoder
	err  error
}

// NewLogger returns a Logger that writes to w. As text it writes a line for each chip of a change, in the form of the original
// allocation server, so that users' scripts still find it. With asJSON it writes a LogLine for each change. wall converts
// CLOCK_MONOTONIC ns into the time of day.
func NewLogger(w io.Writer, asJSON bool, wall func(monotonic uint64) time.Time) *Logger {
	l := &Logger{w: w, wall: wall}
	if asJSON {
		l.json = json.NewEncoder(w)
		l.json.SetEscapeHTML(false)
	}
	return l
}

// LogSchema is the version of the lines of `log --json`. docs/versions.md says which changes increase it.
const LogSchema = 1

// LineSchema begins each line of the log.
type LineSchema struct {
	// Version of this format.
	Schema int `json:"schema" jsonschema:"enum=1"`
}

var lineSchema = LineSchema{LogSchema}

// LogLine is one change as `log --json` prints it. All sizes are in bytes.
type LogLine struct {
	LineSchema
	// When it happened.
	Time time.Time `json:"time"`
	// What happened: a buffer was allocated or freed, or found unsafe: it was allocated
	// after a trace was captured, and that trace was replayed.
	Event string `json:"event" jsonschema:"enum=alloc,enum=free,enum=unsafe"`
	// The process's PID.
	PID uint32 `json:"pid"`
	// The thread's id; null where unknown, or where no thread of the process did it.
	TID *uint32 `json:"tid" jsonschema:"nullable"`
	// The buffer's memory: dram, l1, l1_small, trace, system_memory (the host's) or unknown.
	Memory string `json:"memory"`
	// The buffer's requested size, bytes on each chip; null where unknown.
	Size *uint64 `json:"requested_bytes" jsonschema:"nullable"`
	// Its use of each bank of each of its chips, padding included, bytes; null where unknown.
	PerBank *uint64 `json:"per_bank_bytes" jsonschema:"nullable"`
	// The buffer's first address in each bank, bytes; null where unknown.
	Address *uint64 `json:"address" jsonschema:"nullable"`
	// The buffer's cores and its address on each, as x, y and bytes, if it has an address on each core. It then takes
	// per_bank on these cores alone, and address is the lowest.
	OnCores [][3]uint64 `json:"on_cores,omitempty"`
	// The buffer's id in hex, unique in its process while the buffer lives.
	Buffer string `json:"buffer" jsonschema:"pattern=^0x[0-9a-f]+$"`
	// Numbers of the buffer's chips; empty where unknown.
	Chips []uint32 `json:"chips"`
	// PID of the process that numbers these chips in its own way (TT_VISIBLE_DEVICES); absent where the numbers are the host's.
	Private *uint32 `json:"private_to,omitempty"`
	// True if no call freed this buffer by itself: it was freed with its allocator or process, or was replaced.
	Implicit bool `json:"implicit,omitempty"`
	// Number of the trace whose replay may have overwritten the buffer; absent if none may have.
	Trace *uint32 `json:"trace,omitempty"`
	// True if another buffer had some of its addresses while that trace was captured; absent if no replay may have overwritten it.
	Overlaps *bool `json:"overlaps,omitempty"`
	// Call site that allocated or freed it; absent without stacks.
	Site *Text `json:"site,omitempty"`
	// True if the allocation of the freed buffer was not seen: only its id is known.
	Unknown bool `json:"unmatched,omitempty"`
}

// Err returns the first error of writing.
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

// Unsafe writes that a replay of a trace may have overwritten a buffer.
func (l *Logger) Unsafe(c aggregator.Change) {
	if l.err != nil {
		return
	}
	if l.json != nil {
		line := l.line(c)
		line.Event = "unsafe"
		l.err = l.json.Encode(line)
		return
	}
	b, u := &c.Buffer, c.Buffer.Unsafe
	why := "allocated after the capture"
	if u.Overlaps {
		why = "in memory that the capture used"
	}
	_, l.err = fmt.Fprintf(l.w, "⚠ [PID %d] Unsafe buffer 0x%x on device %s (%d bytes of %s): trace %d was replayed, the buffer was %s\n",
		c.PID, b.ID, deviceList(c.Chips), b.Size, b.Memory, u.Trace, why)
}

// deviceList returns the chips' numbers, as in the original server's lines; "?" for none.
func deviceList(chips []aggregator.Chip) string {
	if len(chips) == 0 {
		return "?"
	}
	numbers := make([]string, len(chips))
	for i, c := range chips {
		numbers[i] = strconv.FormatUint(uint64(c.Number), 10)
	}
	return strings.Join(numbers, ",")
}

func (l *Logger) line(c aggregator.Change) LogLine {
	line := LogLine{
		LineSchema: lineSchema, Time: l.wall(c.Time), Event: "alloc", PID: c.PID, Memory: key(c.Buffer.Memory),
		Size: &c.Buffer.Size, Address: &c.Buffer.Address, Buffer: fmt.Sprintf("%#x", c.Buffer.ID),
		Chips: []uint32{}, Implicit: c.Implicit, Unknown: c.Unknown,
	}
	if c.Unknown {
		line.Memory, line.Size, line.Address = key(aggregator.NumMemories), nil, nil
	}
	if c.Freed {
		line.Event = "free"
	}
	if c.TID != 0 {
		line.TID = &c.TID
	}
	line.Site = callSite(c.Stack, l.Site)
	if u := c.Buffer.Unsafe; u.Found {
		line.Trace, line.Overlaps = &u.Trace, &u.Overlaps
	}
	if c.Buffer.PerBank != 0 {
		line.PerBank = &c.Buffer.PerBank
	}
	for core, address := range c.Buffer.PerCore.All() {
		line.OnCores = append(line.OnCores, [3]uint64{uint64(core.X), uint64(core.Y), address})
	}
	for _, chip := range c.Chips {
		line.Chips = append(line.Chips, chip.Number)
		if chip.Space != 0 {
			line.Private = &chip.Space
		}
	}
	return line
}

// ChipLine has the process and the chip of a change.
type ChipLine struct {
	// The process's PID.
	PID uint32 `json:"pid"`
	// Number of the chip.
	Chip uint32 `json:"chip"`
	// PID of the process that numbers this chip in its own way (TT_VISIBLE_DEVICES); absent where the number is the host's.
	Private *uint32 `json:"private_to,omitempty"`
}

func chipLine(pid uint32, c aggregator.Chip) ChipLine {
	line := ChipLine{PID: pid, Chip: c.Number}
	if c.Space != 0 {
		line.Private = &c.Space
	}
	return line
}

// ProgramLine is a program's circular or dataflow buffer, or scratchpad, that was placed or removed on a chip, as `log --json`
// prints it.
type ProgramLine struct {
	LineSchema
	// When it happened.
	Time time.Time `json:"time"`
	// What happened: cb_alloc or cb_free of a circular buffer, dfb_alloc or dfb_free of a dataflow buffer, scratchpad_alloc or scratchpad_free of a kernel's scratchpad.
	Event string `json:"event" jsonschema:"enum=cb_alloc,enum=cb_free,enum=dfb_alloc,enum=dfb_free,enum=scratchpad_alloc,enum=scratchpad_free"`
	ChipLine
	// Its first address in the L1 of each of its cores, bytes.
	Address uint64 `json:"address"`
	// Its size on each core, bytes. If a client of the socket reported it, the cores are unknown, and this is the size on all of them.
	Size uint64 `json:"size_bytes"`
	// The cores as rectangles of logical coordinates, both ends inclusive: x0, y0, x1, y1.
	Cores [][4]uint16 `json:"cores"`
	// The chip's plain sum of such buffers after this change, over all processes, bytes.
	Total uint64 `json:"total_bytes"`
}

// CBChange writes a circular or dataflow buffer, or scratchpad, that was placed or removed on a chip. As text it has the form of
// the original server, where MB is 2^20 bytes.
func (l *Logger) CBChange(c aggregator.CBChange) {
	if l.err != nil {
		return
	}
	size := c.CB.Bytes()
	if l.json != nil {
		line := ProgramLine{
			LineSchema: lineSchema, Time: l.wall(c.Time), Event: "cb_alloc", ChipLine: chipLine(c.PID, c.Chip),
			Address: c.CB.Address, Size: c.CB.Size, Cores: [][4]uint16{}, Total: c.Total,
		}
		kind, what := "cb", "alloc"
		switch c.CB.Kind {
		case aggregator.Dataflow:
			kind = "dfb"
		case aggregator.Scratchpad:
			kind = "scratchpad"
		}
		if c.Freed {
			what = "free"
		}
		line.Event = kind + "_" + what
		for _, r := range c.CB.Ranges {
			line.Cores = append(line.Cores, [4]uint16{r.X0, r.Y0, r.X1, r.Y1})
		}
		l.err = l.json.Encode(line)
		return
	}
	sign, word, way := "✓", "CB_ALLOC", "+"
	if c.Freed {
		sign, word, way = "✗", "CB_FREE", "-"
	}
	_, l.err = fmt.Fprintf(l.w, "%s [%s] Device %d: %s%s MB (Total: %s MB)\n",
		sign, word, c.Chip.Number, way, mebibytes(size), mebibytes(c.Total))
}

// KernelLine is a kernel's binary that was loaded for a chip, or unloaded, as
// `log --json` prints it.
type KernelLine struct {
	LineSchema
	// When it happened.
	Time time.Time `json:"time"`
	// What happened: the runtime read a binary to load it, or destroyed its program.
	Event string `json:"event" jsonschema:"enum=kernel_load,enum=kernel_unload"`
	ChipLine
	// The kernel's name, from the name of its source file.
	Kernel Text `json:"kernel"`
	// What the kernel is for.
	Type string `json:"type" jsonschema:"enum=application,enum=fabric,enum=dispatch"`
	// The processor that runs it, such as brisc or trisc0.
	Processor Text `json:"processor"`
	// Size of the binary's loadable parts, bytes on each core that runs it; null where unknown.
	Size *uint64 `json:"size_bytes" jsonschema:"nullable"`
	// The chip's total of all kernels after this change, each counted once, over all processes, bytes.
	Total uint64 `json:"total_bytes"`
}

// kernelWords are the original server's names of the types.
var kernelWords = [aggregator.NumKernelTypes]string{"Application", "Fabric", "Dispatch"}

// KernelChange writes a kernel's binary that was loaded for a chip or unloaded. As text it has the form of the original server,
// where an unknown size is 0.
func (l *Logger) KernelChange(c aggregator.KernelChange) {
	if l.err != nil {
		return
	}
	k := c.Kernel
	if l.json != nil {
		line := KernelLine{
			LineSchema: lineSchema, Time: l.wall(c.Time), Event: "kernel_load", ChipLine: chipLine(c.PID, c.Chip),
			Kernel: Text(k.Name), Type: k.Type.String(), Processor: Text(k.Processor), Total: c.Total,
		}
		if c.Unloaded {
			line.Event = "kernel_unload"
		}
		if k.Sized {
			line.Size = &k.Bytes
		}
		l.err = l.json.Encode(line)
		return
	}
	sign, word, way := "✓", "KERNEL_LOAD", "+"
	if c.Unloaded {
		sign, word, way = "✗", "KERNEL_UNLOAD", "-"
	}
	_, l.err = fmt.Fprintf(l.w, "%s [%s] %s kernel on Device %d: %s%s MB (Total: %s MB)\n",
		sign, word, kernelWords[k.Type], c.Chip.Number, way, mebibytes(k.Bytes), mebibytes(c.Total))
}

// FailureLine is an allocation that failed, or a program that could not be placed, as `log --json` prints it.
type FailureLine struct {
	// When it happened.
	Time time.Time `json:"time"`
	// What happened: no block of the memory was large enough; a program's circular buffers would overlap L1 buffers, or
	// are larger than L1; a program is too large for the kernel-config ring; or what only the message says.
	Event string `json:"event" jsonschema:"enum=out_of_memory,enum=clash,enum=beyond_l1,enum=program_too_large,enum=other"`
	// The process's PID.
	PID uint32 `json:"pid"`
	// The thread's id; null where unknown.
	TID *uint32 `json:"tid" jsonschema:"nullable"`
	// The memory: dram, l1, l1_small or trace; unknown where the message does not name it.
	Memory string `json:"memory"`
	// Requested bytes on each chip; null where unknown, and unless memory is out.
	Size *uint64 `json:"requested_bytes" jsonschema:"nullable"`
	// Requested bytes of each bank; null where unknown, and unless memory is out.
	Asked *uint64 `json:"requested_per_bank_bytes" jsonschema:"nullable"`
	// Free bytes of a bank; null where unknown, and unless memory is out.
	Free *uint64 `json:"free_per_bank_bytes" jsonschema:"nullable"`
	// Largest free block of a bank, bytes; null where unknown, and unless memory is out.
	Largest *uint64 `json:"largest_free_per_bank_bytes" jsonschema:"nullable"`
	// Address, in bytes, where the circular buffers end that clash, or are larger than L1; null where unknown, and for others.
	End *uint64 `json:"circular_buffers_end_address" jsonschema:"nullable"`
	// Address, in bytes, where the L1 buffers of a clash begin; null where unknown, and for others.
	Lowest *uint64 `json:"l1_begin_address" jsonschema:"nullable"`
	// Size, in bytes, of a program too large for the kernel-config ring, on each core; null where unknown, and for others.
	Program *uint64 `json:"program_bytes" jsonschema:"nullable"`
	// Size, in bytes, of L1 or of the kernel-config ring, which is too small; null where unknown, and for others.
	Limit *uint64 `json:"limit_bytes" jsonschema:"nullable"`
	// Call site; null where unknown.
	Site *Text `json:"site" jsonschema:"nullable"`
	// The runtime's message.
	Message Text `json:"message"`
}

// LoggedFailure is a FailureLine as `log --json` prints it.
type LoggedFailure struct {
	LineSchema
	FailureLine
}

// AllocationFailed writes an allocation or a program that failed. As text it is the runtime's message; the original server has no such line.
func (l *Logger) AllocationFailed(e *aggregator.Event) {
	f := e.Failure
	if l.err != nil || f == nil {
		return
	}
	line := NewFailureLine(e, l.wall(e.Time), l.Site)
	if l.json != nil {
		l.err = l.json.Encode(LoggedFailure{lineSchema, line})
		return
	}
	var message []byte
	if message, l.err = line.Message.MarshalJSON(); l.err != nil {
		return
	}
	what, in := "Allocation failed", ""
	if f.Kind.OfProgram() {
		what = "Program failed"
	}
	if line.Site != nil {
		var site []byte
		if site, l.err = line.Site.MarshalJSON(); l.err != nil {
			return
		}
		in = " in " + string(site)
	}
	_, l.err = fmt.Fprintf(l.w, "⚠ [PID %d] %s: %s%s\n", e.PID, what, message, in)
}

// NewFailureLine returns the JSON form of an allocation or a program that failed at this time of day. site, which may
// be nil, names the call site of a stack.
func NewFailureLine(e *aggregator.Event, at time.Time, site func(*aggregator.Stack) string) FailureLine {
	f := e.Failure
	line := FailureLine{Time: at, Event: f.Kind.String(), PID: e.PID, Memory: key(e.Memory), Site: callSite(e.Stack, site), Message: Text(f.Message)}
	if tid := e.TID; tid != 0 {
		line.TID = &tid
	}
	given := func(n uint64) *uint64 {
		if n == 0 {
			return nil
		}
		return &n
	}
	line.End, line.Lowest, line.Limit = given(f.End), given(f.Lowest), given(f.Limit)
	switch f.Kind {
	case aggregator.OutOfMemory:
		line.Size, line.Asked = given(f.Asked), given(f.PerBank)
		if f.BankKnown() {
			free, largest := f.Free, f.Largest
			line.Free, line.Largest = &free, &largest
		}
	case aggregator.ProgramTooLarge:
		line.Program = given(f.Asked)
	}
	return line
}

// callSite returns the call site of a stack, nil if unknown.
func callSite(s *aggregator.Stack, name func(*aggregator.Stack) string) *Text {
	if s == nil || name == nil {
		return nil
	}
	site := Text(name(s))
	if site == "" {
		return nil
	}
	return &site
}

// mebibytes returns a size as the original server prints it: a C++ stream's six significant digits.
func mebibytes(n uint64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'g', 6, 64) }

// text writes a change in the form of the original server.
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
