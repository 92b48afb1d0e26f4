package symbol

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"io"
	"math"
	"path"
	"strings"
	"time"
	"unicode/utf16"

	"tt-memtrace/elffile"
	"tt-memtrace/tracer/proc"
)

// Python is where an interpreter keeps what leads to its frames, by version: the
// layouts are those of 3.10 and 3.12, for which the runtime is published. All are
// offsets in bytes.
type Python struct {
	// Runtime is the address of _PyRuntime in the process.
	Runtime uint64
	// Interpreter is the first interpreter in the runtime, Threads its first thread,
	// Next and ThreadID of a thread, Frame its innermost frame, with a pointer
	// between where Indirect.
	Interpreter, Threads, Next, ThreadID, Frame uint32
	Indirect                                    bool
	// Code, Instruction and Back of a frame; Owner, where there is one, marks that of a C call: COwned.
	Code, Instruction, Back, Owner, COwned uint32
	// Identity is a word of a code object that distinguishes it from one that lay at its address before. 3.12 numbers
	// code objects. 3.10 does not: there it is the address of the line table, which can come again.
	Identity uint32
	unique   bool
	// Of a code object: instructions begin at Instructions where Instruction is an address.
	filename, name, firstLine, lineTable, instructions uint64
	// Texts begin here in their objects: in plain ASCII, and otherwise.
	ascii, compact uint64
}

var pythons = map[string]Python{
	"3.10": {
		Interpreter: 32, Threads: 8, Next: 8, ThreadID: 176, Frame: 24, Code: 32, Instruction: 96, Back: 24, Identity: 120,
		filename: 104, name: 112, firstLine: 40, lineTable: 120, ascii: 48, compact: 72,
	},
	"3.12": {
		Interpreter: 40, Threads: 72, Next: 8, ThreadID: 136, Frame: 56, Indirect: true, Code: 0, Instruction: 56, Back: 8, Owner: 70, COwned: 3, Identity: 88, unique: true,
		filename: 112, name: 128, firstLine: 68, lineTable: 136, instructions: 192, ascii: 40, compact: 56,
	},
}

// FindPython finds the interpreter of a process: the file that defines
// _PyRuntime, of a version whose layout is known. Nil where there is none.
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

// pythonRuntime is where _PyRuntime is, from where the code at an offset in the file is mapped.
func (f *file) pythonRuntime(offset uint64) (uint64, bool) {
	address, ok := f.object("_PyRuntime")
	if !ok {
		return 0, false
	}
	code, ok := elffile.AddressOf(elffile.Loads(f.elf), offset)
	return address - code, ok
}

// object is the address of a variable of a file.
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

// code is a code object: a function, and which line each instruction is of.
type code struct {
	ok         bool
	identity   uint64
	file, name string
	first      uint32
	lines      []byte
	// until it may be remembered; zero: for ever.
	until time.Time
}

// pythonNamesLast is how long the names of a code object may be remembered that a later one at its address cannot be
// distinguished from. A notebook's cell, for one, is freed after it ran.
const pythonNamesLast = time.Second

// codeOf is the code object of a frame. It is nil where that was freed since, or cannot be read at once.
func (p *Process) codeOf(f PythonFrame) *code {
	was := p.codes[f.Code]
	if was != nil && was.identity == f.Identity && !past(was.until) {
		return was
	}
	before := p.memory.Late()
	c := p.readCode(f.Code)
	if p.memory.Late() != before || c.ok && c.identity != f.Identity {
		return nil
	}
	if p.codeBytes += c.bytes(); was != nil {
		p.codeBytes -= was.bytes()
	}
	if len(p.codes) >= maxKnown || p.codeBytes > maxCode {
		clear(p.codes)
		p.codeBytes = c.bytes()
	}
	p.codes[f.Code] = c
	return c
}

func past(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// namesLast is until when names that are read now may be remembered; zero: for ever.
func (py *Python) namesLast() (until time.Time) {
	if !py.unique {
		until = time.Now().Add(pythonNamesLast)
	}
	return until
}

// bytes are what it takes.
func (c *code) bytes() int { return len(c.file) + len(c.name) + len(c.lines) }

// Limits for what is read of a code object, bytes.
const (
	maxText  = 1024
	maxTable = 256 << 10
	maxCode  = 16 << 20 // of all code objects of a process
)

// pythonFrame names a frame of Python's, and says until when that may be remembered.
func (p *Process) pythonFrame(f PythonFrame) (named Frame, until time.Time, ok bool) {
	if p.python == nil {
		return Frame{}, until, false
	}
	c := p.codeOf(f)
	if c == nil || !c.ok {
		return Frame{}, p.python.namesLast(), false
	}
	var line uint32
	if p.python.instructions == 0 {
		line = c.line310(2 * uint64(uint32(f.Instruction)))
	} else {
		line = c.line312(f.Instruction - f.Code - p.python.instructions)
	}
	return Frame{Function: c.name, File: c.file, Line: line, Python: true}, c.until, true
}

func (p *Process) word(address uint64) uint64 {
	var b [8]byte
	if !p.read(address, b[:]) {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (p *Process) readCode(at uint64) *code {
	py := p.python
	c := &code{until: py.namesLast()}
	c.file, c.name = p.text(p.word(at+py.filename)), p.text(p.word(at+py.name))
	c.first = uint32(p.word(at + py.firstLine))
	table := p.word(at + py.lineTable)
	if n := p.word(table + 16); n > 0 && n <= maxTable {
		c.lines = make([]byte, n)
		if !p.read(table+32, c.lines) {
			c.lines = nil
		}
	}
	c.identity = p.word(at + uint64(py.Identity)) // last: what was read before is of this one
	c.ok = c.name != "" && p.lives(at)
	return c
}

// lives says whether there is an object that was not freed. The first word of one counts its references; the allocators
// put an address there, or 0, when it is freed.
func (p *Process) lives(object uint64) bool {
	references := p.word(object)
	return references != 0 && references <= math.MaxUint32
}

// text reads a str object.
func (p *Process) text(at uint64) string {
	n, state := min(p.word(at+16), maxText), p.word(at+32)
	if at == 0 || n == 0 {
		return ""
	}
	kind, ascii := state>>2&7, state>>6&1 != 0
	from := p.python.compact
	if ascii {
		from, kind = p.python.ascii, 1
	}
	if kind != 1 && kind != 2 && kind != 4 {
		return ""
	}
	b := make([]byte, n*kind)
	if !p.read(at+from, b) {
		return ""
	}
	var s []rune
	for i := range n {
		switch kind {
		case 1:
			s = append(s, rune(b[i]))
		case 2:
			s = append(s, utf16.Decode([]uint16{binary.LittleEndian.Uint16(b[2*i:])})...)
		case 4:
			s = append(s, rune(binary.LittleEndian.Uint32(b[4*i:])))
		}
	}
	return string(s)
}

// line310 is the line of an instruction by a table of 3.10: pairs of how far
// addresses go, and lines; -128 is none.
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

// line312 is the line of an instruction by a table of 3.11 and later: entries of a
// form and a length in code units, with differences of lines, and columns.
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

// sixes is a number of six bits a byte.
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

func (r *reader) zigzag() int64 {
	v := r.sixes()
	if v&1 != 0 {
		return -int64(v >> 1)
	}
	return int64(v >> 1)
}
