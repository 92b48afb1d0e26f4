package metal

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"tt-memtrace/internal/x86eval"
)

// oncePersistentL1 finds out once where a library's allocators keep this arena.
type oncePersistentL1 struct {
	sync.Once
	offset uint64
	err    error
}

// PersistentL1 returns where an allocator keeps its arena of L1 that outlasts programs, as an offset in the allocator;
// 0 if the library has no such arenas. The allocator's destructor, evaluated over one that has nothing, shows it. The
// error wraps ErrUnsupported if the destructor does not.
func (l *Library) PersistentL1() (offset uint64, err error) {
	o := &l.persistentL1
	o.Do(func() { o.offset, o.err = l.findPersistentL1() })
	return o.offset, o.err
}

func (l *Library) findPersistentL1() (offset uint64, err error) {
	if !l.Defines(destroyPersistent) {
		return 0, nil
	}
	image, err := l.Image()
	if err != nil {
		return 0, err
	}
	destroy := l.First(destroyAllocator)
	const steps, size = 20_000, 1 << 13
	found := errors.New("found")
	m := x86eval.New(image, x86eval.WithStepLimit(steps), x86eval.WithSlots(func(slot uint64) (uint64, x86eval.Hook, bool) {
		if image.Slots()[slot] == destroyPersistent {
			return 0, func(m *x86eval.Machine) error { offset = m.Arg(0); return found }, true
		}
		if name := image.Slots()[slot]; strings.Contains(name, "SmallVector") || strings.Contains(name, ofBankManager) {
			return 0, x86eval.Return(0), true // it has no elements, and no banks
		}
		return image.SlotFunc(x86eval.Libc)(slot)
	}))
	allocator, err := m.Alloc(size)
	if err != nil {
		return 0, err
	}
	_, err = m.Call(l.symbols[destroy].Value, allocator)
	if offset -= min(offset, allocator); !errors.Is(err, found) || offset == 0 || offset >= size {
		return 0, fmt.Errorf("where an allocator has its arena of persistent L1 is unknown: %w: %w", err, ErrUnsupported)
	}
	return offset, nil
}
