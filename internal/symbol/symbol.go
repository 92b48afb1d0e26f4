// Package symbol names the code on a thread's stack. It unwinds a copy of the stack's top with the unwind tables of the mapped
// files, and finds functions, source lines and Python's frames.
//
// It only reads files and the memory of processes, and trusts neither. A worker reads the files: a separate process for each
// user, with limits on memory and time. Naming a stack waits a moment for the worker's answers, and leaves out names that have
// not arrived after that.
package symbol

import (
	"encoding/binary"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/proc"
)

// Registers are a thread's registers in one frame of its stack.
type Registers struct{ IP, SP, BP, BX, R12, R13, R14, R15 uint64 }

// PythonFrame is a frame of Python: the address of its code object, the index or address of its last instruction, and the code
// object's Python.Identity.
type PythonFrame struct{ Code, Instruction, Identity uint64 }

// Stack has a thread's calls, the innermost first. Its texts come from the process and are untrusted.
type Stack struct {
	Frames []Frame
	// Cut means that there are further, outer frames, which were not copied or could not be found.
	Cut bool
}

// Frame is one call. Unknown fields are empty or 0. A call that could not be named has no Function.
type Frame struct {
	// Function is its name, for C++ with the namespaces.
	Function string
	// File is the source file, and Line the line in it.
	File string
	Line uint32
	// Module is the file with the code; empty for Python.
	Module string
	// Python means that it is a Python function.
	Python bool
	// Address is the address of the code in the process; 0 for Python.
	Address uint64
}

// Files are the mapped files of all processes, and the workers that read them.
type Files struct {
	all   map[fileID]*File
	users *users
}

// File is a mapped file.
type File struct {
	mappedFile
	// refused means that a worker ended, or took too long, because of it. It is not read again.
	refused atomic.Bool
}

// NewFiles returns a Files without workers. These start when they are needed.
func NewFiles() *Files { return &Files{map[fileID]*File{}, &users{all: map[uint32]*user{}}} }

// Close ends the workers. Do not use Files, or a Process of it, afterwards.
func (f *Files) Close() { f.users.close() }

// of returns a mapped file, and whether it is a new one.
func (f *Files) of(m mappedFile) (file *File, fresh bool) {
	id := fileID{m.Dev, m.Inode}
	if file := f.all[id]; file != nil {
		return file, false
	}
	if len(f.all) >= maxFiles {
		clear(f.all)
	}
	file = &File{mappedFile: m}
	f.all[id] = file
	return file, true
}

// maxFrames bounds the native frames of a stack.
const maxFrames = 96

// Process names the code of one process. It is not safe for concurrent use.
type Process struct {
	pid    uint32
	files  *Files
	memory *memory.Process
	maps   []mapping
	mapsAt time.Time // when maps were read
	python *Python
	// user has the worker that was asked last. It answers after the process has ended, too.
	user *user
	// codes, frames and rules are caches, by address.
	codes  map[uint64]*code
	frames map[uint64]Frame
	rules  map[uint64]unwindRule
	// codeBytes is the memory that codes take. later is when the perf map may be asked for again.
	codeBytes int
	later     time.Time
}

// unwindRule is how to unwind from an address; not ok if that is unknown for good.
type unwindRule struct {
	rule rule
	ok   bool
}

// mapping is an executable part of a process's memory.
type mapping struct {
	start, end, offset uint64
	file               *File // nil if no file is mapped there
}

// NewProcess returns a Process, which shares files with others. python is its interpreter, or nil.
func NewProcess(pid uint32, files *Files, python *Python) *Process {
	p := &Process{pid: pid, files: files, memory: memory.Of(pid), python: python, codes: map[uint64]*code{}, frames: map[uint64]Frame{},
		rules: map[uint64]unwindRule{}}
	p.lookAtMaps() // this makes the worker open the files, which are needed soon
	return p
}

// read copies memory of the process. It returns false if that cannot be read without waiting.
func (p *Process) read(address uint64, b []byte) bool {
	return len(b) == 0 || p.memory.ReadAt(b, address) == nil
}

// maxKnown bounds each cache of a process.
const maxKnown = 20_000

// Calls are the calls on a stack before they are named: code addresses and Python's frames.
type Calls struct {
	addresses []uint64
	python    []PythonFrame
	cut       bool // there are more Python frames
	whole     bool // the stack was unwound to its end
}

// AppendKey appends bytes that identify these calls within the process.
func (c *Calls) AppendKey(b []byte) []byte {
	for _, a := range c.addresses {
		b = binary.LittleEndian.AppendUint64(b, a)
	}
	b = append(b, '|')
	for _, f := range c.python {
		for _, word := range []uint64{f.Code, f.Instruction, f.Identity} {
			b = binary.LittleEndian.AppendUint64(b, word)
		}
	}
	return b
}

// Unwind returns the calls on a stack. piece is a copy of the stack from r.SP on. cut means that Python has more frames.
func (p *Process) Unwind(r Registers, piece []byte, python []PythonFrame, cut bool) Calls {
	addresses, whole := p.unwind(r, piece)
	return Calls{addresses, python, cut, whole}
}

// Name returns the calls with their names. If there are Python frames, they replace the native calls from the interpreter's first
// one outwards. If the names are final, callers may remember them: until a time or, if that is zero, for ever. They are not final
// if more may be known later, because maps are read again, or a worker still reads a file.
func (p *Process) Name(c Calls) (s Stack, until time.Time, final bool) {
	s.Cut = c.cut
	before := p.memory.Unanswered()
	// Name Python's frames first, because the process may end soon, and its memory is needed for them.
	var ofPython []Frame
	for _, f := range c.python {
		named, last, ok := p.pythonFrame(f)
		if !last.IsZero() && (until.IsZero() || last.Before(until)) {
			until = last
		}
		if !ok {
			named = Frame{Python: true}
		}
		ofPython = append(ofPython, named)
	}
	interpreter, there := false, true
	for i, a := range c.addresses {
		if i > 0 {
			a-- // the address is the return address; the call is before it
		}
		if len(ofPython) > 0 && p.interpreter(a) {
			interpreter = true
			break
		}
		f, known := p.frame(a)
		there = there && known
		s.Frames = append(s.Frames, f)
	}
	s.Frames = append(s.Frames, ofPython...)
	s.Cut = s.Cut || !c.whole && !interpreter
	return s, until, there && p.memory.Unanswered() == before
}

// interpreter reports whether the code at an address is Python's interpreter.
func (p *Process) interpreter(address uint64) bool {
	m := p.mapped(address)
	return m != nil && m.file != nil && isPython(m.file.Path)
}

// isPython reports whether a file is Python's interpreter, by its name.
func isPython(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "libpython3") || strings.HasPrefix(base, "python3")
}

// unwind returns the addresses of the calls, innermost first, and whether it reached the end of the stack.
func (p *Process) unwind(r Registers, piece []byte) (list []uint64, whole bool) {
	base := r.SP
	word := func(at uint64) (uint64, bool) {
		if at < base || at-base > uint64(len(piece)) || uint64(len(piece))-(at-base) < 8 {
			return 0, false
		}
		return binary.LittleEndian.Uint64(piece[at-base:]), true
	}
	for len(list) < maxFrames && r.IP != 0 {
		list = append(list, r.IP)
		at := r.IP
		if len(list) > 1 {
			at--
		}
		l, seen := p.rules[at]
		if !seen {
			var final bool
			l.rule, l.ok, final = p.ruleAt(at)
			if len(p.rules) >= maxKnown {
				clear(p.rules)
			}
			if final {
				p.rules[at] = l
			}
		}
		if !l.ok {
			return list, false
		}
		if l.rule.last {
			return list, true
		}
		next, ok := l.rule.apply(r, word)
		if !ok || next.SP <= r.SP {
			return list, false
		}
		r = next
	}
	return list, r.IP == 0
}

// mapped returns the mapping of an address, or nil. If there is none, it reads the mappings again, unless it did so just before.
func (p *Process) mapped(address uint64) *mapping {
	for range 2 {
		i, ok := slices.BinarySearchFunc(p.maps, address, func(m mapping, a uint64) int {
			switch {
			case m.end <= a:
				return -1
			case m.start > a:
				return 1
			}
			return 0
		})
		if ok {
			return &p.maps[i]
		}
		if time.Since(p.mapsAt) < 100*time.Millisecond {
			return nil
		}
		p.lookAtMaps()
	}
	return nil
}

// lookAtMaps reads the process's mappings with code, and makes the worker open new files while the process exists.
func (p *Process) lookAtMaps() {
	p.mapsAt, p.maps = time.Now(), nil
	var files []mappedFile
	if err := proc.Code(p.pid, func(m proc.Mapping) {
		one := mapping{start: m.Region.Start, end: m.Region.End, offset: m.Region.Start - m.Base}
		if m.ID.Inode != 0 {
			var fresh bool
			if one.file, fresh = p.files.of(mappedFile{m.Path, m.ID.Device, m.ID.Inode}); fresh {
				files = append(files, one.file.mappedFile)
			}
		}
		p.maps = append(p.maps, one)
	}); err != nil {
		p.maps = nil
		return
	}
	if u, err := p.files.users.of(p.pid); err == nil && len(files) > 0 {
		u.send(question{Kind: askOpen, PID: p.pid, Files: files})
	}
}

// ask asks the worker about an address in a mapping: about the offset in its file or, if it has none, about the address. It is not
// ok if the answer has not arrived.
func (p *Process) ask(what questionKind, m *mapping, address uint64) (a answer, ok bool) {
	q, refused := question{Kind: what, PID: p.pid, Address: address}, func() {}
	if m.file != nil {
		if m.file.refused.Load() {
			return a, true
		}
		q.Files, q.Address = []mappedFile{m.file.mappedFile}, address-m.start+m.offset
		refused = func() { m.file.refused.Store(true) }
	}
	u, err := p.files.users.of(p.pid)
	if err != nil {
		u = p.user
	}
	if u == nil {
		return a, false
	}
	p.user = u
	return u.ask(q, refused)
}

// ruleAt returns how to unwind from an address. It is final unless more may be known later.
func (p *Process) ruleAt(address uint64) (r rule, ok, final bool) {
	m := p.mapped(address)
	if m == nil || m.file == nil {
		return r, false, m != nil
	}
	a, final := p.ask(askRule, m, address)
	return a.Rule, a.Known, final
}

// frame returns a native frame with its names. It is final unless more may be known later.
func (p *Process) frame(address uint64) (f Frame, final bool) {
	f, ok := p.frames[address]
	if ok {
		return f, true
	}
	f = Frame{Address: address}
	m := p.mapped(address)
	switch {
	case m == nil:
		return f, false
	case m.file != nil:
		var a answer
		a, final = p.ask(askName, m, address)
		f.Module = m.file.Path
		f.Function, f.File, f.Line = a.Function, a.File, a.Line
	case time.Now().Before(p.later):
		return f, false
	default:
		var a answer
		a, final = p.ask(askPerf, m, address)
		f.Function = a.Function
		if a.Later || !final {
			p.later, final = time.Now().Add(perfEvery), false
		}
	}
	if !final {
		return f, false
	}
	if len(p.frames) >= maxKnown {
		clear(p.frames)
	}
	p.frames[address] = f
	return f, true
}
