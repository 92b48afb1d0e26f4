package metal

import (
	"fmt"
	"strings"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/x86eval"
)

// Getter is a function of the runtime that is evaluated over live processes to read devices.
type Getter struct {
	// Value names the returned value.
	Value string
	// Symbol is the name under which it was found, or the newest of its names.
	Symbol string
	Found  bool
	// Without says what is lost if it is missing or does not work.
	Without string
	// Shows is where a symbolic object would have the value: offsets in bytes, from pointer to pointer. There are
	// several if it depends on the memory.
	Shows []string
	// Err says why only a live process shows that, for example because a virtual function of another object must be
	// called.
	Err error
}

// getterTable lists the getters by their results.
var getterTable = []struct {
	tells, without string
	names          []string
	// ask evaluates it over a symbolic object; nil if that shows nothing.
	ask func(m *x86eval.Machine, function, this uint64) ([]uint64, error)
}{
	{"a chip's number", "devices of one chip are not known: their buffers, and programs from 0.70 on, are on no chip, and marked", []string{DeviceID}, askOnce},
	{"the chips of a mesh", "meshes are not known: their buffers cannot be shown by chip", []string{MeshDeviceIDs}, askVector},
	{"number of banks", "capacities and free bytes are unknown", NumBanks, askMemories},
	{"bytes of a bank", "capacities and free bytes are unknown", BankSize, askMemories},
	{"address of a bank", "where L1 and DRAM begin is shown as unknown", BankBase, askBases},
	{"a mesh's coordinates", withoutRange, []string{MeshView}, askOnce},
	{"the chips of a part of a mesh", withoutRange, []string{DevicesInRange}, askRange},
	{"a mesh's sub-device manager", withoutManager, []string{MeshManager}, askOnce},
	{"a program's commands", withoutManager, []string{ProgramCommands}, askOnce},
	{"a chip's architecture", "architectures are not shown", []string{DeviceArch}, askOnce},
	{"a mesh's architecture", "architectures are not shown", []string{MeshDeviceArch}, askOnce},
	{"the process's context", "names of cards are not shown", ContextInstance, askNothing},
	{"the context's cluster", "names of cards are not shown", []string{GetCluster}, askOnce},
	{"a chip's card", "names of cards are not shown", []string{BoardType}, askOnce},
	{"how the fabric is configured", "kernels for the fabric from before tracing are not counted", []string{FabricConfig}, nil},
	{"a mesh's command queue", WithoutRing, MeshQueue, nil},
	{"number of a mesh's sub-devices", WithoutRing, []string{MeshSubDevices}, askOnce},
	{"a place in the kernel-config ring", WithoutRing, []string{reserveInConfigRing}, nil},
	{"what a program takes of it", "what a launch takes of the kernel-config ring is unknown", []string{ProgramConfigSize}, askOnce},
}

// WithoutRing is what is lost if kernel-config rings cannot be read.
const WithoutRing = "kernel-config rings are not shown"

const withoutRange = "programs for a part of a mesh are counted on all of its chips, and marked"

const withoutManager = "programs from before tracing are not counted where chips were opened again, and marked"

func askOnce(m *x86eval.Machine, function, this uint64) ([]uint64, error) {
	v, err := m.Call(function, this)
	return []uint64{v}, err
}

// askVector is ask for getters that return a std::vector.
func askVector(m *x86eval.Machine, function, this uint64) ([]uint64, error) {
	result, err := m.Alloc(24)
	if err == nil {
		_, err = m.Call(function, result, this)
	}
	return nil, err
}

// askRange is askVector for getters that take a range of mesh coordinates.
func askRange(m *x86eval.Machine, function, this uint64) ([]uint64, error) {
	result, err := m.Alloc(24)
	if err == nil {
		_, err = m.Call(function, result, this, this)
	}
	return nil, err
}

// askNothing is ask for functions without an object.
func askNothing(m *x86eval.Machine, function, _ uint64) ([]uint64, error) {
	v, err := m.Call(function, 0)
	return []uint64{v}, err
}

func askMemories(m *x86eval.Machine, function, this uint64) (values []uint64, err error) {
	memory, err := m.Alloc(4)
	for _, kind := range []aggregator.Memory{aggregator.DRAM, aggregator.L1, aggregator.L1Small, aggregator.Trace} {
		if err == nil {
			err = m.WriteU32(memory, uint32(kind))
		}
		if err == nil {
			var v uint64
			v, err = m.Call(function, this, memory)
			values = append(values, v)
		}
	}
	return values, err
}

// askBases is ask for a getter that takes a HalMemType: DRAM, then L1.
func askBases(m *x86eval.Machine, function, this uint64) (values []uint64, err error) {
	memory, err := m.Alloc(8)
	for _, kind := range []uint64{1, 0} {
		if err == nil {
			err = m.WriteU64(memory, kind)
		}
		if err == nil {
			var v uint64
			v, err = m.Call(function, this, memory)
			values = append(values, v)
		}
	}
	return values, err
}

// getters looks up the getters, and checks without a process what can be checked.
func (l *Library) getters() (list []Getter) {
	for _, row := range getterTable {
		g := Getter{Value: row.tells, Symbol: row.names[0], Without: row.without}
		for _, name := range row.names {
			if s, ok := l.symbols[name]; ok {
				g.Symbol, g.Found = name, true
				if row.ask != nil {
					g.Shows, g.Err = l.shows(row.ask, s.Value)
				}
				break
			}
		}
		list = append(list, g)
	}
	return list
}

func (l *Library) shows(ask func(*x86eval.Machine, uint64, uint64) ([]uint64, error), function uint64) ([]string, error) {
	image, err := l.Image()
	if err != nil {
		return nil, err
	}
	probe := x86eval.NewSymbolicMemory(image)
	const steps = 1000 // enough for what makes sense over a symbolic object
	values, err := ask(x86eval.New(probe, x86eval.WithSlots(image.SlotFunc(x86eval.Libc)), x86eval.WithStepLimit(steps)), function, probe.Root())
	if err != nil {
		return nil, fmt.Errorf("evaluating it without a process: %w", err)
	}
	var shows []string
	for _, v := range values {
		path, ok := probe.Path(v)
		if !ok {
			return nil, fmt.Errorf("evaluating it without a process: it returned %#x", v)
		}
		shows = append(shows, route(path))
	}
	return shows, nil
}

// route formats a path from pointer to pointer.
func route(p x86eval.Path) string {
	var steps []string
	for _, o := range p.Offsets {
		steps = append(steps, fmt.Sprintf("%+#x", o))
	}
	if p.Tail != 0 || len(steps) == 0 {
		steps = append(steps, fmt.Sprintf("%+#x", p.Tail))
	}
	return strings.Join(steps, " → ")
}
