package symbol

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"tt-memtrace/internal/elffile"
	"tt-memtrace/internal/proc"
)

// Python says where an interpreter keeps its frames. Fields are offsets in bytes unless they say otherwise. Versions 3.10 and 3.12
// are known, because the runtime is published for these.
type Python struct {
	// Runtime is the address of _PyRuntime in the process.
	Runtime uint64
	// Interpreter is the pointer to the first interpreter in _PyRuntime, Threads that to its first thread. In a thread, Next
	// is the pointer to the next one, ThreadID its pthread_self(), and Frame the pointer to its innermost frame or, if
	// Indirect, to a pointer to that.
	Interpreter, Threads, Next, ThreadID, Frame uint32
	Indirect                                    bool
	// Code, Instruction and Back are fields of a frame: its code object, its last instruction, and the calling frame. If Owner
	// is not 0, it is a field too, and its value COwned marks the frame of a C call.
	Code, Instruction, Back, Owner, COwned uint32
	// Identity is a field of a code object that differs from that of an earlier code object at the same address. If unique,
	// it always does: 3.12 numbers code objects. In 3.10 it is the address of the line table, which can be reused.
	Identity uint32
	unique   bool
	// These are fields of a code object. instructions is where its instructions begin; it is 0 if a frame has an instruction's
	// index, not its address.
	Filename, Name, FirstLine, LineTable, instructions uint32
	// ASCII and Compact are where the characters of a str object begin, if they are all ASCII or not.
	ASCII, Compact uint32
}

// NamesLast returns how long the names of a code object are sure while its Identity stays the same; 0: for ever.
func (py *Python) NamesLast() time.Duration {
	if py.unique {
		return 0
	}
	return pythonNamesLast
}

// pythons has the known layouts, by version.
var pythons = map[string]Python{
	"3.10": {
		Interpreter: 32, Threads: 8, Next: 8, ThreadID: 176, Frame: 24, Code: 32, Instruction: 96, Back: 24, Identity: 120,
		Filename: 104, Name: 112, FirstLine: 40, LineTable: 120, ASCII: 48, Compact: 72,
	},
	"3.12": {
		Interpreter: 40, Threads: 72, Next: 8, ThreadID: 136, Frame: 56, Indirect: true, Code: 0, Instruction: 56, Back: 8, Owner: 70, COwned: 3, Identity: 88, unique: true,
		Filename: 112, Name: 128, FirstLine: 68, LineTable: 136, instructions: 192, ASCII: 40, Compact: 56,
	},
}

// FindPython returns the layout of a process's interpreter, which is in the file that defines _PyRuntime. It returns nil if there
// is none, or of an unknown version, or if no worker answers in time.
func (f *Files) FindPython(pid uint32) *Python {
	maps, err := proc.Loaded(pid, func(name string, _ proc.FileID) bool { return isPython(name) })
	if err != nil {
		return nil
	}
	u, err := f.users.of(pid)
	if err != nil {
		return nil
	}
	for _, m := range maps {
		base := path.Base(m.Path)
		version := ""
		for v := range pythons {
			if rest := strings.TrimPrefix(strings.TrimPrefix(base, "lib"), "python"); rest == v || strings.HasPrefix(rest, v+".so") {
				version = v
			}
		}
		if version == "" {
			continue
		}
		q := question{Kind: askPython, PID: pid, Files: []mappedFile{{m.Path, m.ID.Device, m.ID.Inode}}, Address: m.Offset()}
		if a, ok := u.ask(q, func() {}); ok && a.Known {
			py := pythons[version]
			py.Runtime = a.Address + m.Region.Start
			return &py
		}
	}
	return nil
}

// pythonRuntime returns the distance from the code at this offset in the file to _PyRuntime, in memory.
func (f *file) pythonRuntime(offset uint64) (uint64, bool) {
	address, ok := f.object("_PyRuntime")
	if !ok {
		return 0, false
	}
	code, ok := elffile.AddressOf(elffile.Loads(f.elf), offset)
	return address - code, ok
}

// object returns the virtual address of a variable among the file's dynamic symbols.
func (f *file) object(name string) (uint64, bool) {
	table := f.elf.SectionByType(elf.SHT_DYNSYM)
	if table == nil || table.Size > maxSymbols || int(table.Link) >= len(f.elf.Sections) || f.elf.Sections[table.Link].ReaderAt == nil {
		return 0, false
	}
	names := f.elf.Sections[table.Link]
	r := bufio.NewReaderSize(table.Open(), 64<<10)
	var b [elf.Sym64Size]byte
	text := make([]byte, len(name)+1)
	for n := table.Size / elf.Sym64Size; n > 0; n-- {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			break
		}
		if binary.LittleEndian.Uint16(b[6:]) == uint16(elf.SHN_UNDEF) || elf.ST_TYPE(b[4]) != elf.STT_OBJECT {
			continue
		}
		if _, err := names.ReadAt(text, int64(binary.LittleEndian.Uint32(b[:]))); err == nil && string(text) == name+"\x00" {
			return binary.LittleEndian.Uint64(b[8:]), true
		}
	}
	return 0, false
}

// code is a Python code object, which is one function.
type code struct {
	ok         bool // it was read and is alive
	identity   uint64
	file, name string
	first      uint32 // its first line
	lines      []byte // its line table
	// until is when it must be read again; zero: never.
	until time.Time
}

// pythonNamesLast is how long a code object may be remembered if its Identity is not unique. A later code object can get the same
// address and Identity; for example, the code of a notebook's cell is freed after it ran.
const pythonNamesLast = time.Second

// codeOf returns the code object of a frame. It returns nil if that was freed since, or cannot be read without waiting.
func (p *Process) codeOf(f PythonFrame) *code {
	was := p.codes[f.Code]
	if was != nil && was.identity == f.Identity && !past(was.until) {
		return was
	}
	before := p.memory.Unanswered()
	c := p.readCode(f.Code)
	if p.memory.Unanswered() != before || c.ok && c.identity != f.Identity {
		return nil
	}
	p.remember(f.Code, c)
	return c
}

// remember keeps a code object.
func (p *Process) remember(at uint64, c *code) {
	was := p.codes[at]
	if p.codeBytes += c.bytes(); was != nil {
		p.codeBytes -= was.bytes()
	}
	if len(p.codes) >= maxKnown || p.codeBytes > maxCode {
		clear(p.codes)
		p.codeBytes = c.bytes()
	}
	p.codes[at] = c
}

// Code is a code object as it was when its code ran. Text and tables are untrusted.
type Code struct {
	Address, Identity uint64
	Name, File        Text
	FirstLine         uint32
	Lines             []byte
	// Whole means that nothing is missing in the texts and the line table.
	Whole bool
}

// Text has the characters of a str object, of Kind bytes each.
type Text struct {
	Bytes []byte
	Kind  uint32
}

// Learn takes the names of a code object from a copy, which is valid until Learn returns. If something is missing there, it reads
// the process. It returns true if it knew other names for the same Address and Identity.
func (p *Process) Learn(from Code) (changed bool) {
	c := &code{identity: from.Identity, file: decodeText(from.File), name: decodeText(from.Name), first: from.FirstLine}
	if !from.Whole {
		if read := p.readCode(from.Address); read.ok && read.identity == from.Identity {
			read.until = time.Time{} // the code ran, so it is the one with this name
			c = read
		}
	}
	if c.name == "" {
		return false // the next stack asks again
	}
	if c.ok = true; c.lines == nil {
		c.lines = slices.Clone(from.Lines)
	}
	was := p.codes[from.Address]
	p.remember(from.Address, c)
	return was != nil && was.identity == c.identity && (was.name != c.name || was.file != c.file || was.first != c.first || !slices.Equal(was.lines, c.lines))
}

// past reports whether a time has come; zero never does.
func past(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// namesLast returns when a code object that is read now must be read again; zero: never.
func (py *Python) namesLast() (until time.Time) {
	if d := py.NamesLast(); d > 0 {
		until = time.Now().Add(d)
	}
	return until
}

// bytes returns the memory that it takes.
func (c *code) bytes() int { return len(c.file) + len(c.name) + len(c.lines) }

// Limits for what is read of a code object, bytes.
const (
	maxText  = 1024
	maxTable = 256 << 10
	maxCode  = 16 << 20 // of all code objects of a process
)

// pythonFrame returns a frame of Python with its names, and until when the caller may remember these, or that there are none; zero:
// for ever. It is not ok if the frame's code object cannot be read.
func (p *Process) pythonFrame(f PythonFrame) (named Frame, until time.Time, ok bool) {
	if p.python == nil {
		return Frame{}, until, false
	}
	c := p.codeOf(f)
	if c == nil || !c.ok {
		return Frame{}, time.Now().Add(pythonNamesLast), false
	}
	var line uint32
	if p.python.instructions == 0 {
		line = c.line310(2 * uint64(uint32(f.Instruction)))
	} else {
		line = c.line312(f.Instruction - f.Code - uint64(p.python.instructions))
	}
	return Frame{Function: c.name, File: c.file, Line: line, Python: true}, c.until, true
}

// word returns 8 bytes of the process's memory, or 0 if they cannot be read.
func (p *Process) word(address uint64) uint64 {
	var b [8]byte
	if !p.read(address, b[:]) {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

// readCode reads the code object at an address. It is ok if it has a name, and was not freed during that.
func (p *Process) readCode(at uint64) *code {
	py := p.python
	c := &code{until: py.namesLast()}
	c.file, c.name = p.text(p.word(at+uint64(py.Filename))), p.text(p.word(at+uint64(py.Name)))
	c.first = uint32(p.word(at + uint64(py.FirstLine)))
	table := p.word(at + uint64(py.LineTable))
	if n := p.word(table + 16); n > 0 && n <= maxTable {
		c.lines = make([]byte, n)
		if !p.read(table+32, c.lines) {
			c.lines = nil
		}
	}
	c.identity = p.word(at + uint64(py.Identity)) // read last: if it is the expected one, so is what was read before
	c.ok = c.name != "" && p.lives(at)
	return c
}

// lives reports whether an object was not freed. The first word of an object counts its references. When the object is freed,
// Python's allocators write an address or 0 there.
func (p *Process) lives(object uint64) bool {
	references := p.word(object)
	return references != 0 && references <= math.MaxUint32
}

// text returns the text of a str object, at most maxText characters; "" if it cannot be read.
func (p *Process) text(at uint64) string {
	n, state := min(p.word(at+16), maxText), p.word(at+32)
	if at == 0 || n == 0 {
		return ""
	}
	kind, ascii := state>>2&7, state>>6&1 != 0
	from := uint64(p.python.Compact)
	if ascii {
		from, kind = uint64(p.python.ASCII), 1
	}
	if kind != 1 && kind != 2 && kind != 4 {
		return ""
	}
	b := make([]byte, n*kind)
	if !p.read(at+from, b) {
		return ""
	}
	return decodeText(Text{b, uint32(kind)})
}

// decodeText decodes a text. It is empty if the kind is unknown.
func decodeText(t Text) string {
	var s []rune
	switch b := t.Bytes; t.Kind {
	case 1:
		for _, c := range b {
			s = append(s, rune(c))
		}
	case 2:
		for ; len(b) >= 2; b = b[2:] {
			s = append(s, utf16.Decode([]uint16{binary.LittleEndian.Uint16(b)})...)
		}
	case 4:
		for ; len(b) >= 4; b = b[4:] {
			s = append(s, rune(binary.LittleEndian.Uint32(b)))
		}
	}
	return string(s)
}

// line310 returns the line of an instruction, or 0, from a line table of Python 3.10. The table has pairs of bytes: how many bytes
// of instructions follow, and the difference of their line; -128 means no line.
func (c *code) line310(at uint64) uint32 {
	line, end := int64(c.first), uint64(0)
	for b := c.lines; len(b) >= 2; b = b[2:] {
		end += uint64(b[0])
		none := int8(b[1]) == -128
		if !none {
			line += int64(int8(b[1]))
		}
		if at < end {
			if none {
				return 0
			}
			return uint32(line)
		}
	}
	return 0
}

// line312 returns the line of an instruction, or 0, from a line table of Python 3.11 and later. An entry has a form, its length in
// code units, and in some forms the difference of the line, and columns.
func (c *code) line312(at uint64) uint32 {
	r := &reader{b: c.lines}
	line, end := int64(c.first), uint64(0)
	for len(r.b) > 0 && !r.bad {
		head := r.byte()
		end += 2 * (uint64(head&7) + 1)
		none := false
		switch form := head >> 3 & 15; {
		case form == 15:
			none = true
		case form == 14:
			line += r.zigzag()
			r.sixes()
			r.sixes()
			r.sixes()
		case form == 13:
			line += r.zigzag()
		case form >= 10:
			line += int64(form - 10)
			r.skip(2)
		default:
			r.skip(1)
		}
		if at < end {
			if none || r.bad {
				return 0
			}
			return uint32(line)
		}
	}
	return 0
}

// sixes returns the next number of a Python line table, which has six bits in each byte.
func (r *reader) sixes() uint64 {
	var v uint64
	for shift := uint(0); shift < 64; shift += 6 {
		b := r.byte()
		v |= uint64(b&63) << shift
		if b&64 == 0 || r.bad {
			break
		}
	}
	return v
}

// zigzag returns the next signed number of a Python line table, whose lowest bit is the sign.
func (r *reader) zigzag() int64 {
	v := r.sixes()
	if v&1 != 0 {
		return -int64(v >> 1)
	}
	return int64(v >> 1)
}
