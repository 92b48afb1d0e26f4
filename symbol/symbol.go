// Package symbol names the code on a thread's stack: it unwinds a copied piece
// of a stack by the files' unwind tables, and finds functions, lines and
// Python's frames.
//
// It only reads files and the memory of processes, and trusts neither. A worker reads the
// files: a separate process for each user, with limits on memory and
// time. Naming a stack waits a moment for the worker; names that are not known by then are
// left out of this stack.
package symbol

import (
	"encoding/binary"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tt-memtrace/tracer/memory"
	"tt-memtrace/tracer/proc"
)

// Registers at the place where a stack begins, and what is known while it is unwound.
type Registers struct{ IP, SP, BP, BX, R12, R13, R14, R15 uint64 }

// PythonFrame is a frame of the interpreter's: its code object, its last instruction, by index or by address, and
// the code object's Python.Identity.
type PythonFrame struct{ Code, Instruction, Identity uint64 }

// Stack is a thread's calls, the innermost first. Its words are the process's own and
// untrusted.
type Stack struct {
	Frames []Frame
	// Cut: there are further frames, which were not copied or could not be found.
	Cut bool
}

// Frame is one call. What is not known of it is empty or 0.
type Frame struct {
	// Function, of a C++ function with its namespaces.
	Function string
	// File of the source, and the Line in it.
	File string
	Line uint32
	// Module is the file of the code; empty for Python's.
	Module string
	// Python: it is a function of the interpreter's.
	Python bool
	// Address of the code in the process, or 0.
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
	// refused: a worker failed at it.
	refused atomic.Bool
}

// NewFiles starts nothing yet. Close ends what it started.
func NewFiles() *Files { return &Files{map[fileID]*File{}, &users{all: map[uint32]*user{}}} }

// Close ends the workers. No process may be asked about any more.
func (f *Files) Close() { f.users.close() }

// of is a mapped file, and whether it was met for the first time.
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
	mapsAt time.Time
	python *Python
	// user whose worker answered last.
	user   *user
	codes  map[uint64]*code
	frames map[uint64]Frame
	rules  map[uint64]located
	// codeBytes is what codes take, and later when frames in perf maps are asked for again.
	codeBytes int
	later     time.Time
}

// located is how to unwind from a place, and the place's file.
type located struct {
	rule rule
	ok   bool
}

// mapping is an executable piece of a process.
type mapping struct {
	start, end, offset uint64
	file               *File // nil where there is none
}

// NewProcess looks at a process, whose files are kept in common. Python is
// where it has the interpreter, or nil.
func NewProcess(pid uint32, files *Files, python *Python) *Process {
	p := &Process{pid: pid, files: files, memory: memory.Of(pid).Hurried(), python: python, codes: map[uint64]*code{}, frames: map[uint64]Frame{},
		rules: map[uint64]located{}}
	p.lookAtMaps() // the files take a while to be read, and are needed soon
	return p
}

// read copies memory of the process.
func (p *Process) read(address uint64, b []byte) bool {
	return len(b) == 0 || p.memory.ReadAt(b, address) == nil
}

// maxKnown bounds what is remembered of a process.
const maxKnown = 20_000

// Calls are the calls on a stack before they are named: addresses, and Python's frames.
type Calls struct {
	addresses []uint64
	python    []PythonFrame
	cut       bool // it was not copied whole
	whole     bool // it was unwound to its end
}

// AppendKey appends what identifies these calls within the process.
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

// Unwind finds the calls on a stack, of which piece is a copy. Cut says that Python has
// more frames than these.
func (p *Process) Unwind(r Registers, piece []byte, python []PythonFrame, cut bool) Calls {
	addresses, whole := p.unwind(r, piece)
	return Calls{addresses, python, cut, whole}
}

// Name names calls: of the native ones those before the interpreter's, then Python's, where there are any. Callers may
// remember the names where these are final, until a time unless that is zero. They are not final where more may be known
// later: maps are read again soon, and files while others go on.
func (p *Process) Name(c Calls) (s Stack, until time.Time, final bool) {
	s.Cut = c.cut
	before := p.memory.Late()
	// Python's first: the process has to be there for these.
	var ofPython []Frame
	for _, f := range c.python {
		named, last, ok := p.pythonFrame(f)
		if !last.IsZero() && (until.IsZero() || last.Before(until)) {
			until = last
		}
		if ok {
			ofPython = append(ofPython, named)
		} else {
			s.Cut = true
		}
	}
	interpreter, there := false, true
	for i, a := range c.addresses {
		if i > 0 {
			a-- // the call, not what comes after it
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
	return s, until, there && p.memory.Late() == before
}

// interpreter says whether code is the interpreter's own.
func (p *Process) interpreter(address uint64) bool {
	m := p.mapped(address)
	return m != nil && m.file != nil && isPython(m.file.Path)
}

// isPython says whether a file is the interpreter, by its name.
func isPython(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "libpython3") || strings.HasPrefix(base, "python3")
}

// unwind finds the addresses of the calls, innermost first, and says whether it came to the end.
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
			var there bool // or else it may be when the maps are looked at again, or the file is read
			l.rule, l.ok, there = p.ruleAt(at)
			if len(p.rules) >= maxKnown {
				clear(p.rules)
			}
			if there {
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

// mapped finds the mapping of an address, looking again where there is none.
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

// ask asks about an address: of the file that it lies in, or of the process where that
// is what is asked for. It is not ok where it is not known yet.
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

// ruleAt is how to unwind from an address; final unless more may be known later.
func (p *Process) ruleAt(address uint64) (r rule, ok, final bool) {
	m := p.mapped(address)
	if m == nil || m.file == nil {
		return r, false, m != nil
	}
	a, final := p.ask(askRule, m, address)
	return a.Rule, a.Known, final
}

// frame names a native frame; final unless more may be known later.
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
