// Package symbol names the code on a thread's stack: it unwinds a copied piece
// of a stack by the files' unwind tables, and finds functions, lines and
// Python's frames.
//
// It only reads: files, and the memory of processes. Neither is trusted, and
// what cannot be told is left out.
package symbol

import (
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
)

// Registers at the place where a stack begins, and what is known while it is unwound.
type Registers struct{ IP, SP, BP, BX, R12, R13, R14, R15 uint64 }

// PythonFrame is a frame of the interpreter's: its code object, and its last
// instruction, by index or by address.
type PythonFrame struct{ Code, Instruction uint64 }

// maxFrames bounds the native frames of a stack.
const maxFrames = 96

// Process names the code of one process. It is not safe for concurrent use.
type Process struct {
	pid    uint32
	files  *Files
	maps   []mapping
	mapsAt time.Time
	python *Python
	codes  map[uint64]*code
	frames map[uint64]aggregator.Frame
	rules  map[uint64]located
	known  map[string]*aggregator.Stack
	perf   []perfEntry
	perfAt int64
	key    []byte
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
	p := &Process{pid: pid, files: files, python: python, codes: map[uint64]*code{}, frames: map[uint64]aggregator.Frame{},
		rules: map[uint64]located{}, known: map[string]*aggregator.Stack{}}
	p.lookAtMaps() // the files take a while to be read, and are needed soon
	return p
}

// read copies memory of the process.
func read(pid uint32, address uint64, b []byte) bool {
	if len(b) == 0 {
		return true
	}
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}
	n, err := unix.ProcessVMReadv(int(pid), local, remote, 0)
	return err == nil && n == len(b)
}

// maxKnown bounds what is remembered of a process.
const maxKnown = 100_000

// Stack names a stack: of the native frames those before the interpreter's, then
// Python's, where there are any. Equal stacks are one.
func (p *Process) Stack(r Registers, piece []byte, python []PythonFrame, cut bool) *aggregator.Stack {
	addresses, whole := p.unwind(r, piece)
	p.key = p.key[:0]
	for _, a := range addresses {
		p.key = binary.LittleEndian.AppendUint64(p.key, a)
	}
	p.key = append(p.key, '|')
	for _, f := range python {
		p.key = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(p.key, f.Code), f.Instruction)
	}
	if s := p.known[string(p.key)]; s != nil {
		return s
	}
	if len(p.known) >= maxKnown {
		clear(p.known)
	}
	s := &aggregator.Stack{Cut: cut}
	// Python's first: the process has to be there for these.
	var ofPython []aggregator.Frame
	for _, f := range python {
		if named, ok := p.pythonFrame(f); ok {
			ofPython = append(ofPython, named)
		} else {
			s.Cut = true
		}
	}
	interpreter, there := false, true
	for i, a := range addresses {
		if i > 0 {
			a-- // the call, not what comes after it
		}
		if len(ofPython) > 0 && p.interpreter(a) {
			interpreter = true
			break
		}
		there = there && p.mapped(a) != nil
		s.Frames = append(s.Frames, p.frame(a))
	}
	s.Frames = append(s.Frames, ofPython...)
	s.Cut = s.Cut || !whole && !interpreter
	if there {
		p.known[string(p.key)] = s
	}
	return s
}

// interpreter says whether code is the interpreter's own.
func (p *Process) interpreter(address uint64) bool {
	m := p.mapped(address)
	return m != nil && m.file != nil && isPython(m.file.path)
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
			there := p.mapped(at) != nil // or else it may be when the maps are looked at again
			l.rule, l.ok = p.ruleAt(at)
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
	proc, err := procfs.NewProc(int(p.pid))
	if err != nil {
		return
	}
	list, err := proc.ProcMaps()
	if err != nil {
		return
	}
	for _, m := range list {
		if !m.Perms.Execute {
			continue
		}
		one := mapping{start: uint64(m.StartAddr), end: uint64(m.EndAddr), offset: uint64(m.Offset)}
		if m.Inode != 0 {
			one.file = p.files.open(p.pid, m.Pathname, m.Dev, m.Inode)
		}
		p.maps = append(p.maps, one)
	}
}

// place is an address in terms of its file.
func (p *Process) place(address uint64) (*File, uint64, bool) {
	m := p.mapped(address)
	if m == nil || m.file == nil {
		return nil, 0, false
	}
	v, ok := m.file.virtual(address - m.start + m.offset)
	return m.file, v, ok
}

func (p *Process) ruleAt(address uint64) (rule, bool) {
	f, v, ok := p.place(address)
	if !ok {
		return rule{}, false
	}
	return f.rule(v)
}

// frame names a native frame.
func (p *Process) frame(address uint64) aggregator.Frame {
	f, ok := p.frames[address]
	if ok {
		return f
	}
	f = aggregator.Frame{Address: address}
	there := p.mapped(address) != nil
	if file, v, ok := p.place(address); ok {
		f.Module = file.path
		f.Function = file.function(v)
		f.File, f.Line = file.line(v)
	} else {
		f.Function = p.perfName(address)
	}
	if len(p.frames) >= maxKnown {
		clear(p.frames)
	}
	if there {
		p.frames[address] = f
	}
	return f
}

// perfEntry is a line of a perf map: code that was made at run time.
type perfEntry struct {
	start, end uint64
	name       string
}

// perfName looks for an address in the process's perf map, which it may write to all the time.
func (p *Process) perfName(address uint64) string {
	path := fmt.Sprintf("/proc/%d/root/tmp/perf-%d.map", p.pid, p.pid)
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size() > 64<<20 {
		return ""
	}
	if st.Size() != p.perfAt {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		p.perfAt, p.perf = st.Size(), parsePerf(b)
	}
	i, ok := slices.BinarySearchFunc(p.perf, address, func(e perfEntry, a uint64) int {
		switch {
		case e.end <= a:
			return -1
		case e.start > a:
			return 1
		}
		return 0
	})
	if !ok {
		return ""
	}
	return p.perf[i].name
}

func parsePerf(b []byte) []perfEntry {
	var list []perfEntry
	for line := range strings.Lines(string(b)) {
		var start, size uint64
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(fields) != 3 {
			continue
		}
		if _, err := fmt.Sscanf(fields[0]+" "+fields[1], "%x %x", &start, &size); err == nil && start+size > start {
			list = append(list, perfEntry{start, start + size, fields[2]})
		}
	}
	slices.SortFunc(list, func(a, b perfEntry) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
	return list
}
