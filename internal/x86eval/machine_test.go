package x86eval

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// flat is a Memory of a few pieces.
type flat map[uint64][]byte

func (f flat) ReadAt(p []byte, addr uint64) error {
	for start, data := range f {
		if addr >= start && addr-start <= uint64(len(data)) && uint64(len(p)) <= uint64(len(data))-(addr-start) {
			copy(p, data[addr-start:])
			return nil
		}
	}
	return errors.New("unmapped")
}

const (
	testCode = 0x40_0000
	testData = 0x50_0000
)

func code(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func u64s(v ...uint64) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func TestFaults(t *testing.T) {
	hookErr := errors.New("told so")
	for _, tt := range []struct {
		name string
		code []byte
		addr uint64 // of the fault, relative to the code
		want error
		opts []Option
	}{
		{"endless loop", []byte{0xeb, 0xfe}, 0, ErrLimit, nil},
		{"endless recursion", []byte{0xe8, 0xfb, 0xff, 0xff, 0xff}, 0, ErrLimit, nil},
		{"endless rep", []byte{0x48, 0x83, 0xc9, 0xff, 0xf3, 0x48, 0xab}, 4, ErrLimit, []Option{WithStepLimit(100)}},
		{"writing everywhere", []byte{0x48, 0x83, 0xc9, 0xff, 0xf3, 0x48, 0xab}, 4, ErrLimit, nil},
		{"ud2", []byte{0x90, 0x0f, 0x0b}, 1, ErrTrap, nil},
		{"division by zero", []byte{0x31, 0xc9, 0xf7, 0xf1}, 2, ErrTrap, nil},
		{"misaligned", []byte{0x0f, 0x28, 0x47, 0x01}, 0, ErrTrap, nil},
		{"unmapped load", []byte{0x31, 0xc0, 0x48, 0x8b, 0x00}, 2, ErrMemory, nil},
		{"load across the end of memory", []byte{0x48, 0x83, 0xc8, 0xff, 0x48, 0x8b, 0x00}, 4, ErrMemory, nil},
		{"running off", []byte{0x90}, 1, ErrMemory, nil},
		{"cut short", []byte{0x90, 0x48, 0x8b}, 1, ErrUnsupported, nil},
		{"syscall", []byte{0x0f, 0x05}, 0, ErrUnsupported, nil},
		{"x87", []byte{0xd9, 0xee}, 0, ErrUnsupported, nil},
		{"mmx", []byte{0x0f, 0xef, 0xc0}, 0, ErrUnsupported, nil},
		{"evex", []byte{0x62, 0xf1, 0x7c, 0x48, 0x10, 0x07}, 0, ErrUnsupported, nil},
		{"far address", []byte{0x65, 0x48, 0x8b, 0x07}, 0, ErrUnsupported, nil},
		{"undefined flag", []byte{0x6b, 0xc0, 0x03, 0x74, 0x00}, 3, ErrUnsupported, nil},
		{"lock on a register", []byte{0xf0, 0x01, 0xc0}, 0, ErrUnsupported, nil},
		{"unbalanced return", []byte{0x58, 0x50, 0x50, 0xc3}, 0x2a00_0000, ErrMemory, []Option{func(m *Machine) { m.base = testCode + 0x2700_0000 }}},
		{"hook", []byte{0x90, 0xe8, 0xfa, 0x0f, 0x00, 0x00}, 1, hookErr,
			[]Option{WithHooks(map[uint64]Hook{testCode + 0x1000: func(*Machine) error { return hookErr }})}},
		{"throw", []byte{0xe9, 0xfb, 0x0f, 0x00, 0x00}, 0, ErrThrow,
			[]Option{WithResolver(func(a uint64) (Hook, bool) { return Throw("f"), a == testCode+0x1000 })}},
		{"executing the heap", []byte{0xff, 0xe6}, 0x69ff_ffc0_0000, ErrMemory, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := New(flat{testCode: tt.code, testData: make([]byte, 64)}, tt.opts...)
			heap, err := m.Alloc(64)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Write(heap, []byte{0xc3}); err != nil {
				t.Fatal(err)
			}
			_, err = m.Call(testCode, testData, heap)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			var f *Fault
			if !errors.As(err, &f) {
				t.Fatalf("error %v is no Fault", err)
			}
			if f.Addr != testCode+tt.addr {
				t.Errorf("fault at %#x, want %#x: %v", f.Addr-testCode, tt.addr, err)
			}
		})
	}
}

func TestOverlayNeverReachesTarget(t *testing.T) {
	data := u64s(5, 6)
	// lock xadd %rsi,(%rdi); add $1,%esi; mov %rsi,8(%rdi); mov (%rdi),%rax; ret
	text := []byte{0xf0, 0x48, 0x0f, 0xc1, 0x37, 0x83, 0xc6, 0x01, 0x48, 0x89, 0x77, 0x08, 0x48, 0x8b, 0x07, 0xc3}
	m := New(flat{testCode: text, testData: data})
	v, err := m.Call(testCode, testData, 100)
	if err != nil || v != 105 {
		t.Fatalf("got %d, %v", v, err)
	}
	if !bytes.Equal(data, u64s(5, 6)) {
		t.Errorf("target changed to %x", data)
	}
	if v, err := m.ReadU64(testData + 8); err != nil || v != 6 {
		t.Errorf("overlay has %d, %v", v, err)
	}
	if n := len(m.lines); n != 1 {
		t.Errorf("%d lines written", n)
	}
}

func TestOverlayMixesWithMemory(t *testing.T) {
	data := make([]byte, 256)
	for i := range data {
		data[i] = byte(i)
	}
	m := New(flat{testData: data})
	want := bytes.Clone(data)
	for _, w := range []struct{ at, n int }{{3, 2}, {60, 10}, {128, 64}, {255, 1}} {
		p := bytes.Repeat([]byte{0xee}, w.n)
		if err := m.Write(testData+uint64(w.at), p); err != nil {
			t.Fatal(err)
		}
		copy(want[w.at:], p)
	}
	for at := 0; at < len(data); at += 7 {
		for n := 1; n <= 32 && at+n <= len(data); n++ {
			p := make([]byte, n)
			if err := m.Read(testData+uint64(at), p); err != nil || !bytes.Equal(p, want[at:at+n]) {
				t.Fatalf("reading %d at %d: %x, %v", n, at, p, err)
			}
		}
	}
	// What was written entirely is readable where the target has nothing.
	if err := m.WriteU64(0x1000, 9); err != nil {
		t.Fatal(err)
	}
	if v, err := m.ReadU64(0x1000); v != 9 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
	if _, err := m.ReadU64(0x1001); !errors.Is(err, ErrMemory) {
		t.Errorf("partly unmapped: %v", err)
	}
}

func TestLoads(t *testing.T) {
	type load struct {
		addr uint64
		size int
	}
	var loads []load
	// mov 8(%rdi),%eax; push %rax; pop %rcx; vmovdqu (%rdi),%ymm0; mov %eax,(%rdi); mov (%rdi),%eax; ret
	text := []byte{0x8b, 0x47, 0x08, 0x50, 0x59, 0xc5, 0xfe, 0x6f, 0x07, 0x89, 0x07, 0x8b, 0x07, 0xc3}
	memory := flat{testCode: text, testData: make([]byte, 64)}
	m := New(MemoryFunc(func(p []byte, addr uint64) error {
		if addr >= testData {
			loads = append(loads, load{addr, len(p)})
		}
		return memory.ReadAt(p, addr)
	}))
	if _, err := m.Call(testCode, testData); err != nil {
		t.Fatal(err)
	}
	if len(loads) != 2 || loads[0] != (load{testData + 8, 4}) || loads[1] != (load{testData, 32}) {
		t.Errorf("loads %x", loads)
	}
}

func TestThreadLocal(t *testing.T) {
	// mov %fs:0x28,%rax; mov %fs:0,%rcx; xor -8(%rcx),%rax; mov %rax,%fs:-16; mov -16(%rcx),%rax; ret
	text := code([]byte{0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0},
		[]byte{0x64, 0x48, 0x8b, 0x0c, 0x25, 0, 0, 0, 0},
		[]byte{0x48, 0x33, 0x41, 0xf8},
		[]byte{0x64, 0x48, 0x89, 0x04, 0x25, 0xf0, 0xff, 0xff, 0xff},
		[]byte{0x48, 0x8b, 0x41, 0xf0, 0xc3})
	v, err := New(flat{testCode: text}).Call(testCode)
	if err != nil || v != canary {
		t.Errorf("got %#x, %v", v, err)
	}
}

func TestHooks(t *testing.T) {
	// push %rbx; mov %rdi,%rbx; call *slot(%rip); add %rbx,%rax; pop %rbx; ret
	text := []byte{0x53, 0x48, 0x89, 0xfb, 0xff, 0x15, 0xf6, 0x0f, 0, 0, 0x48, 0x01, 0xd8, 0x5b, 0xc3}
	slot := uint64(testCode + 0x1000)
	double := []byte{0x48, 0x8d, 0x04, 0x3f, 0xc3} // lea (%rdi,%rdi),%rax; ret
	mem := flat{testCode: text, testCode + 0x100: double, slot: u64s(testCode + 0x100)}

	if v, err := New(mem).Call(testCode, 7); err != nil || v != 21 {
		t.Errorf("through the pointer: %d, %v", v, err)
	}
	hook := func(m *Machine) error {
		// A hook may call back, and finds its registers unchanged.
		v, err := m.Call(testCode+0x100, m.Arg(0)+1)
		if err == nil && m.Arg(0) != 7 {
			t.Errorf("argument became %d", m.Arg(0))
		}
		m.Regs[RAX] = v
		return err
	}
	m := New(mem, WithHooks(map[uint64]Hook{testCode + 0x100: Return(1)}))
	if v, err := m.Call(testCode, 7); err != nil || v != 8 {
		t.Errorf("hook at the target: %d, %v", v, err)
	}
	m = New(mem, WithSlots(func(s uint64) (uint64, Hook, bool) { return 0, hook, s == slot }))
	if v, err := m.Call(testCode, 7); err != nil || v != 23 {
		t.Errorf("hook at the slot: %d, %v", v, err)
	}
	m = New(mem, WithSlots(func(s uint64) (uint64, Hook, bool) { return testCode + 0x100, nil, s == slot }))
	if v, err := m.Call(testCode, 7); err != nil || v != 21 {
		t.Errorf("target of the slot: %d, %v", v, err)
	}
	// Calling back for ever ends, too.
	m = New(mem, WithHooks(map[uint64]Hook{0x1234: func(m *Machine) error {
		_, err := m.Call(0x1234)
		return err
	}}))
	if _, err := m.Call(0x1234); !errors.Is(err, ErrLimit) {
		t.Errorf("recursive hook: %v", err)
	}
}

func TestAlloc(t *testing.T) {
	m := New(flat{})
	a, err := m.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.Alloc(0)
	if err != nil || b == a || b%16 != 0 {
		t.Errorf("got %#x after %#x, %v", b, a, err)
	}
	for _, n := range []uint64{heapSize, 1 << 62, ^uint64(0)} {
		if _, err := m.Alloc(n); !errors.Is(err, ErrLimit) {
			t.Errorf("allocating %#x: %v", n, err)
		}
	}
	if _, err := m.Alloc(heapSize - 32); err != nil {
		t.Errorf("allocating the rest: %v", err)
	}
	if _, err := m.Alloc(1); !errors.Is(err, ErrLimit) {
		t.Errorf("allocating more: %v", err)
	}
}

func TestLibc(t *testing.T) {
	data := []byte("hello world\x00hello there\x00")
	for _, tt := range []struct {
		name string
		args []uint64
		want uint64
	}{
		{"strlen", []uint64{testData}, 11},
		{"strlen", []uint64{testData + 11}, 0},
		{"memcmp", []uint64{testData, testData + 12, 6}, 0},
		{"memcmp", []uint64{testData, testData + 12, 8}, 1},
		{"memcpy", []uint64{0x9000, testData, 5}, 0x9000},
		{"memset", []uint64{0x9000, 1, 5}, 0x9000},
		{"pthread_mutex_lock", []uint64{0}, 0},
		{"_Znwm", []uint64{8}, defaultBase},
		{"_ZnwmSt11align_val_t", []uint64{8, 64}, defaultBase},
	} {
		hook, ok := Libc(tt.name)
		if !ok {
			t.Errorf("no %s", tt.name)
			continue
		}
		m := New(flat{testData: append(data, make([]byte, 64)...)}, WithHooks(map[uint64]Hook{testCode: hook}))
		if v, err := m.Call(testCode, tt.args...); err != nil || v != tt.want {
			t.Errorf("%s%x = %#x, %v, want %#x", tt.name, tt.args, v, err, tt.want)
		}
	}
	for _, name := range []string{"_Znwm", "calloc", "aligned_alloc", "memcpy", "memset", "memcmp", "__cxa_throw", "_ZSt20__throw_length_errorPKc"} {
		hook, ok := Libc(name)
		if !ok {
			t.Errorf("no %s", name)
			continue
		}
		m := New(flat{}, WithHooks(map[uint64]Hook{testCode: hook}))
		if v, err := m.Call(testCode, ^uint64(0), ^uint64(0), ^uint64(0)); err == nil {
			t.Errorf("%s with hostile arguments = %#x", name, v)
		}
	}
	if _, ok := Libc("getenv"); ok {
		t.Error("getenv has a hook")
	}
}

func TestSymbolicMemory(t *testing.T) {
	// mov 16(%rdi),%rax; cmpb $0,56(%rax); je 1f; mov 64(%rax),%eax; ret; 1: ud2
	text := []byte{0x48, 0x8b, 0x47, 0x10, 0x80, 0x78, 0x38, 0x00, 0x74, 0x04, 0x8b, 0x40, 0x40, 0xc3, 0x0f, 0x0b}
	p := NewSymbolicMemory(flat{testCode: text})
	this := p.Root()
	if _, err := New(p).Call(testCode, this); !errors.Is(err, ErrTrap) {
		t.Errorf("flag clear: %v", err)
	}
	loads := p.Loads()
	if len(loads) != 2 || loads[1].Path.Tail != 56 || loads[1].Size != 1 {
		t.Fatalf("loads %+v", loads)
	}
	p.Set(p.Child(this+16)+56, 1)
	v, err := New(p).Call(testCode, this)
	if err != nil {
		t.Fatal(err)
	}
	path, ok := p.Path(v)
	if !ok || path.Root != this || len(path.Offsets) != 2 || path.Offsets[0] != 16 || path.Offsets[1] != 64 || path.Tail != 0 {
		t.Errorf("path %+v, %v", path, ok)
	}
	if path, ok := p.Path(this + 24); !ok || path.Root != this || len(path.Offsets) != 0 || path.Tail != 24 {
		t.Errorf("path of a member's address %+v, %v", path, ok)
	}
	for _, v := range []uint64{0, 1, 42, testCode, ^uint64(0)} {
		if path, ok := p.Path(v); ok {
			t.Errorf("%#x has path %+v", v, path)
		}
	}
	// jmp *(%rdi)
	p = NewSymbolicMemory(flat{testCode: []byte{0xff, 0x27}})
	if _, err := New(p).Call(testCode, p.Root()); !errors.Is(err, ErrMemory) {
		t.Errorf("virtual call: %v", err)
	}
}

// FuzzMachine runs arbitrary code over arbitrary memory, in which every address
// is readable.
func FuzzMachine(f *testing.F) {
	for _, fm := range append(intForms(), vecForms()...) {
		var rec record
		randomizer{newRand(uint64(fm.op))}.instance(fm, &rec)
		f.Add(rec.Code[:], uint64(fm.op))
	}
	f.Add([]byte{0xf3, 0x48, 0xab, 0xeb, 0xfb}, ^uint64(0))
	f.Fuzz(func(t *testing.T, text []byte, salt uint64) {
		mem := MemoryFunc(func(p []byte, addr uint64) error {
			for i := range p {
				at := addr + uint64(i)
				if at-testCode < uint64(len(text)) {
					p[i] = text[at-testCode]
				} else {
					p[i] = byte((at ^ salt) * 0x9e3779b97f4a7c15 >> 56)
				}
			}
			return nil
		})
		copyHook, _ := Libc("memcpy")
		newHook, _ := Libc("_Znwm")
		m := New(mem, WithStepLimit(2000), WithHooks(map[uint64]Hook{
			testCode + 0x800: copyHook, testCode + 0x801: newHook,
			testCode + 0x802: func(m *Machine) error { _, err := m.Call(testCode, m.Arg(0)); return err },
		}))
		for range 2 {
			_, err := m.Call(testCode, salt, testCode+0x800, testCode+0x801, testCode+0x802, salt>>1, 8)
			var fault *Fault
			if err != nil && !errors.As(err, &fault) {
				t.Errorf("error is no Fault: %v", err)
			}
		}
		if m.Steps() > 2000+1 || len(m.lines) > maxLines || len(m.privatePages()) > (heapSize+stackSize+tlsBelow+tlsAbove)/pageSize+8 {
			t.Errorf("%d steps, %d lines, %d pages", m.Steps(), len(m.lines), len(m.privatePages()))
		}
	})
}

// FuzzImage opens arbitrary files and reads from them.
func FuzzImage(f *testing.F) {
	header := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
	f.Add(header, uint64(0))
	f.Fuzz(func(t *testing.T, file []byte, addr uint64) {
		img, err := NewImage(bytes.NewReader(file), 0x1000)
		if err != nil {
			return
		}
		var p [64]byte
		_ = img.ReadAt(p[:], addr)
		img.Contains(addr)
		img.SlotFunc(Libc)(addr)
	})
}

// What an instruction leads to is asked for once; at what may have a hook, each machine has its own.
func TestEntries(t *testing.T) {
	const function = testCode + 0x1000
	mem := flat{testCode: {
		0x39, 0xf7, // cmp edi, esi
		0x74, 0x01, // je over the next
		0x90,
		0xe8, 0xf6, 0x0f, 0x00, 0x00, // call the function
		0xc3,
	}, function: {0xb8, 7, 0, 0, 0, 0xc3}} // mov eax, 7; ret
	shared := NewCode()
	asked := map[uint64]int{}
	entry := WithEntries(func(addr uint64) bool {
		asked[addr]++
		return addr == function
	})
	for _, want := range []uint64{7, 9, 7, 9} {
		hook := WithResolver(func(addr uint64) (Hook, bool) { return Return(9), want == 9 && addr == function })
		if got, err := New(mem, WithCode(shared), entry, hook).Call(testCode, 1, 1); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	if len(asked) != 2 || asked[testCode+5] != 1 || asked[function] != 1 {
		t.Errorf("asked %v", asked)
	}
}

// The memory of a machine that was freed is as good as new.
func TestFree(t *testing.T) {
	shared := NewCode()
	mem := flat{testCode: {0xc3}}
	for range 3 {
		m := New(mem, WithCode(shared))
		at, err := m.Alloc(3 * pageSize)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 3*pageSize)
		if err := m.Read(at, b); err != nil || !bytes.Equal(b, make([]byte, len(b))) {
			t.Fatalf("memory that was allocated is not zero, %v", err)
		}
		for i := range b {
			b[i] = 0xff
		}
		if err := m.Write(at, b); err != nil {
			t.Fatal(err)
		}
		m.Free()
	}
	if len(shared.spare) != 4 {
		t.Errorf("%d pages are kept, want those of one machine", len(shared.spare))
	}
}
