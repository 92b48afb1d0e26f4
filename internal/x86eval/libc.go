package x86eval

import (
	"bytes"
	"fmt"
	"strings"
)

// Return is a Hook for a function whose only effect that matters is its result.
func Return(v uint64) Hook {
	return func(m *Machine) error {
		m.Regs[RAX] = v
		return nil
	}
}

// Throw is a Hook for a function that does not return normally. The evaluation
// ends with an ErrThrow which names the function.
func Throw(name string) Hook {
	return func(*Machine) error { return fmt.Errorf("%w: %s", ErrThrow, name) }
}

// Libc has hooks for the functions of the C and C++ runtime which getters call:
// allocation from the Machine's heap, copying and comparing memory, locks (which
// always succeed: nothing runs concurrently with the evaluated code, and the
// target's locks are not ours to take) and functions that throw or abort.
func Libc(symbol string) (Hook, bool) {
	switch symbol {
	case "malloc", "_Znwm", "_Znam", "_ZnwmRKSt9nothrow_t", "_ZnamRKSt9nothrow_t":
		return allocate(func(m *Machine) (uint64, uint64) { return m.Arg(0), 16 }), true
	case "_ZnwmSt11align_val_t", "_ZnamSt11align_val_t":
		return allocate(func(m *Machine) (uint64, uint64) { return m.Arg(0), m.Arg(1) }), true
	case "aligned_alloc":
		return allocate(func(m *Machine) (uint64, uint64) { return m.Arg(1), m.Arg(0) }), true
	case "calloc":
		return allocate(func(m *Machine) (uint64, uint64) {
			n, size := m.Arg(0), m.Arg(1)
			if n > heapSize || size > heapSize {
				return heapSize + 1, 16 // more than there is; the product may overflow
			}
			return n * size, 16
		}), true
	case "free", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm", "_ZdlPvSt11align_val_t", "_ZdlPvmSt11align_val_t":
		return Return(0), true
	case "memcpy", "memmove", "__memcpy_chk", "__memmove_chk":
		return copyMemory, true
	case "memset", "__memset_chk":
		return fillMemory, true
	case "memcmp", "bcmp":
		return compareMemory, true
	case "strlen":
		return stringLength, true
	case "memchr":
		return findByte, true
	case "strcmp":
		return compareStrings, true
	case "pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_unlock",
		"pthread_rwlock_rdlock", "pthread_rwlock_tryrdlock", "pthread_rwlock_wrlock",
		"pthread_rwlock_trywrlock", "pthread_rwlock_unlock",
		"pthread_spin_lock", "pthread_spin_unlock":
		return Return(0), true
	case "__cxa_throw", "__cxa_rethrow", "_Unwind_Resume", "abort", "exit", "__stack_chk_fail",
		"__assert_fail", "_ZSt9terminatev", "__cxa_throw_bad_array_new_length":
		return Throw(symbol), true
	}
	if strings.HasPrefix(symbol, "_ZSt") && strings.Contains(symbol, "__throw_") {
		return Throw(symbol), true
	}
	return nil, false
}

// spend accounts for a hook's work on n bytes, which would have taken steps.
func (m *Machine) spend(n uint64) error {
	if n > maxTransfer {
		return limit("memory operation")
	}
	if n/lineSize > uint64(max(m.maxSteps-m.steps, 0)) {
		return limit("steps")
	}
	m.steps += int(n / lineSize)
	return nil
}

func allocate(args func(*Machine) (size, align uint64)) Hook {
	return func(m *Machine) error {
		size, align := args(m)
		if size > heapSize || align > pageSize || align&(align-1) != 0 {
			return limit("allocation")
		}
		align = max(align, 16)
		addr, err := m.Alloc(size + align - 16)
		m.Regs[RAX] = (addr + align - 1) &^ (align - 1)
		return err
	}
}

func copyMemory(m *Machine) error {
	dst, src, n := m.Arg(0), m.Arg(1), m.Arg(2)
	if err := m.spend(n); err != nil {
		return err
	}
	p := make([]byte, n)
	if err := m.read(p, src); err != nil {
		return err
	}
	m.Regs[RAX] = dst
	return m.write(dst, p)
}

func fillMemory(m *Machine) error {
	dst, c, n := m.Arg(0), byte(m.Arg(1)), m.Arg(2)
	if err := m.spend(n); err != nil {
		return err
	}
	m.Regs[RAX] = dst
	return m.write(dst, bytes.Repeat([]byte{c}, int(n)))
}

func compareMemory(m *Machine) error {
	n := m.Arg(2)
	if err := m.spend(n); err != nil {
		return err
	}
	p, q := make([]byte, n), make([]byte, n)
	if err := m.read(p, m.Arg(0)); err != nil {
		return err
	}
	if err := m.read(q, m.Arg(1)); err != nil {
		return err
	}
	m.Regs[RAX] = uint64(bytes.Compare(p, q))
	return nil
}

func findByte(m *Machine) error {
	at, c, n := m.Arg(0), byte(m.Arg(1)), m.Arg(2)
	if err := m.spend(n); err != nil {
		return err
	}
	p := make([]byte, n)
	if err := m.read(p, at); err != nil {
		return err
	}
	m.Regs[RAX] = 0
	if i := bytes.IndexByte(p, c); i >= 0 {
		m.Regs[RAX] = at + uint64(i)
	}
	return nil
}

// compareStrings reads byte by byte: strings that differ do so early, and equal
// ones are names of types.
func compareStrings(m *Machine) error {
	a, b := m.Arg(0), m.Arg(1)
	for i := uint64(0); ; i++ {
		if err := m.spend(lineSize); err != nil {
			return err
		}
		var x, y [1]byte
		if err := m.read(x[:], a+i); err != nil {
			return err
		}
		if err := m.read(y[:], b+i); err != nil {
			return err
		}
		if x != y || x[0] == 0 {
			m.Regs[RAX] = uint64(int64(int(x[0]) - int(y[0])))
			return nil
		}
	}
}

// stringLength reads aligned chunks, which do not reach into another page than
// the string does.
func stringLength(m *Machine) error {
	const chunk = 16
	start := m.Arg(0)
	skip := start % chunk
	for at := start - skip; ; at += chunk {
		if at-start < 1<<63 && at-start > maxTransfer {
			return limit("memory operation")
		}
		if err := m.spend(lineSize); err != nil {
			return err
		}
		var p [chunk]byte
		if err := m.read(p[:], at); err != nil {
			return err
		}
		if i := bytes.IndexByte(p[skip:], 0); i >= 0 {
			m.Regs[RAX] = at + skip + uint64(i) - start
			return nil
		}
		skip = 0
	}
}
