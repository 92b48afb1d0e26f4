package x86eval_test

import (
	"errors"
	"fmt"
	"log"

	"tt-memtrace/internal/x86eval"
)

// codeAt is where the examples' code lies.
const codeAt = 0x40_0000

// getter returns a field of a field: mov 16(%rdi),%rax; mov 64(%rax),%rax; ret.
var getter = []byte{0x48, 0x8b, 0x47, 0x10, 0x48, 0x8b, 0x40, 0x40, 0xc3}

// code is a memory that holds one function and nothing else.
func code(text []byte) x86eval.Memory {
	return x86eval.MemoryFunc(func(p []byte, addr uint64) error {
		if addr < codeAt || addr+uint64(len(p)) > codeAt+uint64(len(text)) {
			return errors.New("not mapped")
		}
		copy(p, text[addr-codeAt:])
		return nil
	})
}

// A function of two arguments. Registers start as zero; the result is what it
// leaves in rax.
func ExampleMachine_Call() {
	text := []byte{0x48, 0x8d, 0x04, 0x37, 0xc3} // lea (%rdi,%rsi),%rax; ret
	sum, err := x86eval.New(code(text)).Call(codeAt, 40, 2)
	fmt.Println(sum, err)
	// Output: 42 <nil>
}

// A SymbolicMemory finds out where an object keeps a field, from the code of its getter
// alone: without an object, and without a process.
func ExampleSymbolicMemory() {
	probe := x86eval.NewSymbolicMemory(code(getter))
	object := probe.Root()
	value, err := x86eval.New(probe).Call(codeAt, object)
	if err != nil {
		log.Fatal(err)
	}
	path, known := probe.Path(value)
	fmt.Println(path.Offsets, path.Tail, known)
	// Output: [16 64] 0 true
}

// Memory that cannot be read is an error, never a value.
func ExampleFault() {
	_, err := x86eval.New(code(getter)).Call(codeAt, 0x1000)
	fmt.Println(errors.Is(err, x86eval.ErrMemory))
	var fault *x86eval.Fault
	if errors.As(err, &fault) {
		fmt.Printf("at %#x: % x\n", fault.Addr, fault.Code)
	}
	// Output:
	// true
	// at 0x400000: 48 8b 47 10
}
