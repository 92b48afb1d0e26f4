package tracer

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
)

// failures are the records of allocations and programs that found no room.
type failures struct {
	*core
	stacks *stacks
}

func (fs *failures) records() []recordKind {
	return []recordKind{takes(bpf.MemtraceTtKindTT_REFUSED, fs.allocationFailed)}
}

// allocationFailed turns a message that the runtime is about to throw into an event, if it is about an allocation or
// a program that found no room.
func (fs *failures) allocationFailed(rec record, e *bpf.MemtraceTtRefusal) {
	stack := fs.stacks.take(rec.origin)
	f, memory := failure(message(e), stack)
	if f == nil {
		return
	}
	event := aggregator.Event{Kind: aggregator.AllocationFailed, Memory: memory, Stack: stack, Failure: f}
	if f.Kind.OfProgram() {
		event.Program = e.Program
	}
	fs.emit(rec.origin, event)
}

// messageKinds say what messages are about. A release words some of them differently; these words are in all releases.
var messageKinds = []struct {
	words string
	kind  aggregator.FailureKind
}{
	{"Out of Memory", aggregator.OutOfMemory},
	{" clash with ", aggregator.Clash},
	{" is beyond max L1 size", aggregator.BeyondL1},
	{" too large for kernel config buffer", aggregator.ProgramTooLarge},
}

// failure returns what a message says, and about which memory; nil if it is about neither an allocation nor a program
// that found no room. The numbers that the message lacks stay 0.
func failure(text string, stack *aggregator.Stack) (*aggregator.FailedAllocation, aggregator.Memory) {
	f, memory := &aggregator.FailedAllocation{Kind: aggregator.OtherFailure, Message: text}, aggregator.L1
	for _, m := range messageKinds {
		if strings.Contains(text, m.words) {
			f.Kind = m.kind
			break
		}
	}
	switch f.Kind {
	case aggregator.OutOfMemory:
		memory = memoryIn(text)
		f.Asked, f.Banks, f.PerBank = numberIn(text, askedWords), numberIn(text, banksWords), numberIn(text, perBankWords)
		if allocatedWords.MatchString(text) { // some releases say how large a bank is, but not how full
			f.BankBytes, f.Allocated = numberIn(text, bankWords), numberIn(text, allocatedWords)
			f.Free, f.Largest = numberIn(text, freeWords), numberIn(text, largestWords)
		}
	case aggregator.Clash:
		f.Lowest, f.End = numberIn(text, lowestWords), numberIn(text, endWords)
	case aggregator.BeyondL1:
		f.End, f.Limit = numberIn(text, growWords), numberIn(text, l1Words)
	case aggregator.ProgramTooLarge:
		f.Asked, f.Limit = numberIn(text, programWords), numberIn(text, ringWords)
	case aggregator.OtherFailure:
		memory = aggregator.NumMemories
		if !foundNoRoom(stack) {
			return nil, 0
		}
	}
	return f, memory
}

// The words of messages around their numbers.
var (
	askedWords     = regexp.MustCompile(`to allocate (\d+) B`)
	memoryWords    = regexp.MustCompile(`to allocate \d+ B (\w+)`)
	banksWords     = regexp.MustCompile(`across (\d+) banks`)
	perBankWords   = regexp.MustCompile(`(?:each bank needs to store |banks \()(\d+) B`)
	bankWords      = regexp.MustCompile(`bank size is (?:only )?(\d+) B`)
	allocatedWords = regexp.MustCompile(`\(allocated: (\d+) B`)
	freeWords      = regexp.MustCompile(`, free: (\d+) B`)
	largestWords   = regexp.MustCompile(`largest free block: (\d+) B`)
	lowestWords    = regexp.MustCompile(`(?:L1 buffer allocated at|lowest service allocation at) (\d+)`)
	endWords       = regexp.MustCompile(`region ends at (\d+)`)
	growWords      = regexp.MustCompile(`grow to (\d+) B`)
	l1Words        = regexp.MustCompile(`max L1 size of (\d+)`)
	programWords   = regexp.MustCompile(`Program size \((\d+)\)`)
	ringWords      = regexp.MustCompile(`kernel config buffer \((\d+)\)`)
)

// numberIn returns the number between these words, 0 if the text has none.
func numberIn(text string, words *regexp.Regexp) uint64 {
	m := words.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseUint(m[1], 10, 64) // 0 if it is too large
	return n
}

// memoryIn returns the memory that is full; NumMemories if the text does not name it.
func memoryIn(text string) aggregator.Memory {
	m := memoryWords.FindStringSubmatch(text)
	for memory := range aggregator.NumMemories {
		if m != nil && m[1] == memory.String() {
			return memory
		}
	}
	return aggregator.NumMemories
}

// foundNoRoom reports whether a function threw that finds room for buffers or programs.
func foundNoRoom(stack *aggregator.Stack) bool {
	return stack != nil && slices.ContainsFunc(stack.Frames, func(f aggregator.Frame) bool {
		return slices.ContainsFunc(metal.Roomless, func(name string) bool { return strings.Contains(f.Function, name) })
	})
}

// message fills in a format as the runtime does, {} by {}. An argument that is neither a number nor a text, or that
// was not read, is an ellipsis; a text that is empty, such as a hint that does not apply, is empty.
func message(e *bpf.MemtraceTtRefusal) string {
	format := string(e.Format[:min(int(e.Length), len(e.Format))])
	types := metal.Arguments(e.Types)
	var b strings.Builder
	for i, texts := 0, 0; ; i++ {
		before, after, found := strings.Cut(format, "{}")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		t := types.At(i)
		switch {
		case t == metal.Unsigned64:
			b.WriteString(strconv.FormatUint(e.Args[i], 10))
		case t == metal.Unsigned32:
			b.WriteString(strconv.FormatUint(e.Args[i]&0xffffffff, 10))
		case t == metal.Text && texts < len(e.Lengths):
			const room = len(e.Text) / len(e.Lengths)
			n := min(int(e.Lengths[texts]), room)
			if b.Write(e.Text[texts*room:][:n]); n == room {
				b.WriteString("…") // probably there is more
			}
			texts++
		default:
			b.WriteString("…")
		}
		format = after
	}
}
