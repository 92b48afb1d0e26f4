package tracer

import (
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/symbol"
)

// stacks names the stacks that are sent ahead of allocations, frees and failures.
type stacks struct {
	files     *symbol.Files
	processes map[uint32]*namedStacks
	// sentAhead are stacks whose allocation, free or failure is not read yet.
	sentAhead sentAhead[bpf.MemtraceTtStack]
}

func newStacks() *stacks {
	return &stacks{files: symbol.NewFiles(), processes: map[uint32]*namedStacks{}, sentAhead: sentAhead[bpf.MemtraceTtStack]{}}
}

// namedStacks holds the named stacks of a process; equal stacks share one object.
type namedStacks struct {
	*symbol.Process
	known map[string]knownStack
	key   []byte
}

// knownStack is a stack that keeps its names until a time, or for good where that is zero.
type knownStack struct {
	*aggregator.Stack
	until time.Time
}

// lasts reports whether the names are still valid.
func (k knownStack) lasts() bool {
	return k.Stack != nil && (k.until.IsZero() || time.Now().Before(k.until))
}

// same reports whether it has the same names as another, so that the old object can be kept.
func (k knownStack) same(s *aggregator.Stack) bool {
	return k.Stack != nil && k.Cut == s.Cut && slices.Equal(k.Frames, s.Frames)
}

// maxKnownStacks bounds the stacks kept per process.
const maxKnownStacks = 100_000

// name names calls.
func (p *namedStacks) name(c symbol.Calls) *aggregator.Stack {
	p.key = c.AppendKey(p.key[:0])
	was := p.known[string(p.key)]
	if was.lasts() {
		return was.Stack
	}
	named, until, final := p.Name(c)
	s := &aggregator.Stack{Cut: named.Cut, Frames: make([]aggregator.Frame, len(named.Frames))}
	for i, f := range named.Frames {
		s.Frames[i] = aggregator.Frame(f)
	}
	if was.same(s) {
		s = was.Stack
	}
	if final {
		if len(p.known) >= maxKnownStacks {
			clear(p.known)
		}
		p.known[string(p.key)] = knownStack{s, until}
	}
	return s
}

func (s *stacks) close() { s.files.Close() }

// addProcess finds a process's Python interpreter and tells the BPF programs where its frames are.
func (s *stacks) addProcess(e *env, pid uint32) {
	if s.processes[pid] != nil {
		return
	}
	py := s.files.FindPython(pid)
	s.processes[pid] = &namedStacks{Process: symbol.NewProcess(pid, s.files, py), known: map[string]knownStack{}}
	if py == nil {
		return
	}
	k := bpf.MemtraceTtPython{
		Runtime: py.Runtime, Interpreter: py.Interpreter, Threads: py.Threads, Next: py.Next, ThreadId: py.ThreadID, Frame: py.Frame,
		Code: py.Code, Instruction: py.Instruction, Back: py.Back, Owner: py.Owner, C_owned: py.COwned, Identity: py.Identity,
		Filename: py.Filename, Name: py.Name, FirstLine: py.FirstLine, LineTable: py.LineTable, Ascii: py.ASCII, Compact: py.Compact,
		Number: e.interpreters.Add(1), Lasts: uint64(py.NamesLast()),
	}
	if py.Indirect {
		k.Indirect = 1
	}
	if err := e.objects.Pythons.Put(pid, &k); err != nil {
		e.opts.Notice(fmt.Sprintf("process %d: its Python frames are not shown: %v", pid, err))
	}
}

func (s *stacks) records() []recordKind {
	stack := recordKind{kind: bpf.MemtraceTtKindTT_STACK, take: func(r record) { s.sentAhead.add(r.origin, r.bytes) }}
	code := takes(bpf.MemtraceTtKindTT_CODE, s.learn)
	stack.spare, code.spare = true, true
	return []recordKind{stack, code}
}

// drop forgets a process.
func (s *stacks) drop(e *env, pid uint32) {
	if s.processes[pid] != nil {
		e.objects.Pythons.Delete(pid) // fails if the process has no Python
		delete(s.processes, pid)
	}
}

// learn takes the names of a code object.
func (s *stacks) learn(rec record, e *bpf.MemtraceTtCode) {
	p := s.processes[rec.pid]
	if p == nil {
		return
	}
	changed := p.Learn(symbol.Code{
		Address: e.Code, Identity: e.Identity, FirstLine: e.FirstLine, Whole: e.Whole != 0,
		Name:  symbol.Text{Bytes: e.NameText[:min(int(e.Name.Length), len(e.NameText))], Kind: e.Name.Kind},
		File:  symbol.Text{Bytes: e.FileText[:min(int(e.File.Length), len(e.FileText))], Kind: e.File.Kind},
		Lines: e.Lines[:min(int(e.LinesLength), len(e.Lines))],
	})
	if changed {
		clear(p.known)
	}
}

// take returns the named stack that was sent ahead of a record; nil if there was none.
func (s *stacks) take(from origin) *aggregator.Stack {
	e, p := s.sentAhead.take(from), s.processes[from.pid]
	if e == nil || p == nil {
		return nil
	}
	regs := symbol.Registers{IP: e.Ip, SP: e.Sp, BP: e.Bp, BX: e.Bx, R12: e.R12, R13: e.R13, R14: e.R14, R15: e.R15}
	var python [len(e.Python)]symbol.PythonFrame
	frames := python[:min(int(e.Frames), len(python))]
	for i := range frames {
		frames[i] = symbol.PythonFrame{Code: e.Python[i].Code, Instruction: e.Python[i].Instruction, Identity: e.Python[i].Identity}
	}
	return p.name(p.Unwind(regs, e.Stack[:min(int(e.Length), len(e.Stack))], frames, e.Cut != 0))
}
