package tracer

import (
	"fmt"
	"slices"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/symbol"
)

// stacks names the stacks that are sent ahead of allocations.
type stacks struct {
	files     *symbol.Files
	processes map[uint32]*namedStacks
	// sentAhead are those of allocations and refusals that are not read yet.
	sentAhead sentAhead[bpf.MemtraceTtStack]
	// sent: the BPF programs send stacks.
	sent bool
}

func newStacks() *stacks {
	return &stacks{files: symbol.NewFiles(), processes: map[uint32]*namedStacks{}, sentAhead: sentAhead[bpf.MemtraceTtStack]{}}
}

// SendStacks has the stacks of allocations and refusals sent from about now on, or no more. It
// does nothing without Options.Stacks.
func (t *Tracer) SendStacks(on bool) {
	t.sendStacks.Store(on && t.opts.Stacks)
	t.reader.Flush() // fails where the reader has ended
}

// SendsStacks says whether stacks are wanted.
func (t *Tracer) SendsStacks() bool { return t.sendStacks.Load() }

// switchStacks tells the BPF programs whether stacks are wanted. They know the interpreters of
// all processes before.
func (r *run) switchStacks() error {
	wanted := r.t.sendStacks.Load()
	if wanted == r.stacks.sent {
		return nil
	}
	paused := uint32(1)
	if wanted {
		paused = 0
		for pid := range r.processes {
			r.stacks.addProcess(r.t, pid)
		}
	}
	if err := r.t.objects.StacksPaused.Set(paused); err != nil {
		return fmt.Errorf("switching stacks: %w", err)
	}
	r.stacks.sent = wanted
	return nil
}

// namedStacks are the stacks of a process, which equal ones share.
type namedStacks struct {
	*symbol.Process
	known map[string]knownStack
	key   []byte
}

// knownStack has its names until a time, or for ever where that is zero.
type knownStack struct {
	*aggregator.Stack
	until time.Time
}

func (k knownStack) lasts() bool {
	return k.Stack != nil && (k.until.IsZero() || time.Now().Before(k.until))
}

// same says whether it has the names of another, which then stays the same object.
func (k knownStack) same(s *aggregator.Stack) bool {
	return k.Stack != nil && k.Cut == s.Cut && slices.Equal(k.Frames, s.Frames)
}

// maxKnownStacks bounds what is remembered of a process.
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

// addProcess looks for the interpreter of a process, and gives the BPF programs the place of its frames.
func (s *stacks) addProcess(t *Tracer, pid uint32) {
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
	}
	if py.Indirect {
		k.Indirect = 1
	}
	if err := t.objects.Pythons.Put(pid, &k); err != nil {
		t.opts.Notice(fmt.Sprintf("process %d: its Python frames are not shown: %v", pid, err))
	}
}

// drop forgets a process.
func (s *stacks) drop(t *Tracer, pid uint32) {
	if s.processes[pid] != nil {
		t.objects.Pythons.Delete(pid) // fails where it is not Python
		delete(s.processes, pid)
	}
}

// take names the stack that was sent ahead of a thread's event; nil where none was.
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
