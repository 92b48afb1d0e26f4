package main

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"

	"tt-memtrace/bpf"
	"tt-memtrace/internal/metal"
	"tt-memtrace/tracer"
)

const (
	noWakeup = 1 // BPF_RB_NO_WAKEUP
	// lookEvery is how often the ring is looked at: as often as tt-memtrace does under load.
	lookEvery = 10 * time.Millisecond
)

// records sends a record where tt-memtrace sends one, as long as its own, in which are only when, who and the second argument: the
// least that any program does which says to user space that something happened.
func records(t target) (func() error, error) { return sending(t, nil) }

// events is records in which an allocation has the fields of its Buffer: the least that any program does which says what happened.
func events(t target) (func() error, error) { return sending(t, t.points.layout) }

// sending sends records, with the fields of Buffers where their layout is given.
func sending(t target, layout *metal.Layout) (func() error, error) {
	var open closers
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "records", Type: ebpf.RingBuf, MaxEntries: tracer.DefaultRingBytes})
	if err != nil {
		return nil, fmt.Errorf("making the ring: %w", err)
	}
	open = append(open, ring.Close)
	if err := open.probe(t, func(symbol string) asm.Instructions {
		switch symbol {
		case reserved:
			return ends()
		case freed:
			return sends(ring, unsafe.Sizeof(bpf.MemtraceTtObject{}), nil)
		}
		return sends(ring, unsafe.Sizeof(bpf.MemtraceTtAlloc{}), layout)
	}); err != nil {
		return nil, errors.Join(err, open.close())
	}
	reader, err := ringbuf.NewReader(ring)
	if err != nil {
		return nil, errors.Join(err, open.close())
	}
	ended := make(chan error, 1)
	reader.SetDeadline(time.Now())
	go func() { ended <- drop(reader) }()
	return func() error { return errors.Join(reader.Close(), <-ended, open.close()) }, nil
}

// ends are the instructions that end a program.
func ends() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
}

// sends are the instructions for a record of so many bytes, with the fields of the Buffer where its layout is given.
func sends(ring *ebpf.Map, size uintptr, layout *metal.Layout) asm.Instructions {
	const head = 24
	list := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapPtr(asm.R1, ring.FD()), asm.Mov.Imm(asm.R2, int32(size)), asm.Mov.Imm(asm.R3, 0), asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Reg(asm.R7, asm.R0),
		asm.FnKtimeGetNs.Call(), asm.StoreMem(asm.R7, 0, asm.R0, asm.DWord),
		asm.FnGetCurrentPidTgid.Call(), asm.StoreMem(asm.R7, 8, asm.R0, asm.DWord),
		asm.LoadMem(asm.R8, asm.R6, secondArgument, asm.DWord), asm.StoreMem(asm.R7, 16, asm.R8, asm.DWord),
	}
	if layout != nil {
		const pointer, fields = -8, -8 - metal.WindowSize // on the program's stack
		list = append(list, asm.Add.Imm(asm.R8, int32(layout.Base)))
		if layout.Indirect {
			list = append(list, reads(pointer, 8)...)
			list = append(list, asm.LoadMem(asm.R8, asm.RFP, pointer, asm.DWord))
		}
		list = append(list, reads(fields, metal.WindowSize)...)
		// What fits: which of them they are does not change what it takes.
		for at := int16(0); head+uintptr(at)+8 <= size; at += 8 {
			list = append(list, asm.LoadMem(asm.R1, asm.RFP, fields+at, asm.DWord), asm.StoreMem(asm.R7, head+at, asm.R1, asm.DWord))
		}
	}
	list = append(list, asm.Mov.Reg(asm.R1, asm.R7), asm.Mov.Imm(asm.R2, noWakeup), asm.FnRingbufSubmit.Call())
	return append(list, ends()...)
}

// reads are the instructions that read so many bytes of the process, from where R8 says, to the program's stack.
func reads(to, size int32) asm.Instructions {
	return append(onStack(asm.R1, to), asm.Mov.Imm(asm.R2, size), asm.Mov.Reg(asm.R3, asm.R8), asm.FnProbeReadUser.Call())
}

// counts counts launches by what is launched: the least that any program does which says what was launched how often.
func counts(t target) (func() error, error) {
	var open closers
	const object, one, launches = -8, -16, 65536
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "launches", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: launches})
	if err != nil {
		return nil, fmt.Errorf("making the map of launches: %w", err)
	}
	open = append(open, m.Close)
	list := asm.Instructions{asm.LoadMem(asm.R8, asm.R1, secondArgument, asm.DWord)}
	list = append(list, reads(object, 8)...)
	list = append(list, asm.LoadMapPtr(asm.R1, m.FD()))
	list = append(list, onStack(asm.R2, object)...)
	list = append(list, asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "first"), asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0), asm.Ja.Label("end"))
	list = append(list, asm.Mov.Imm(asm.R1, 1).WithSymbol("first"), asm.StoreMem(asm.RFP, one, asm.R1, asm.DWord), asm.LoadMapPtr(asm.R1, m.FD()))
	list = append(list, onStack(asm.R2, object)...)
	list = append(list, onStack(asm.R3, one)...)
	list = append(list, asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call())
	list = append(list, ends()...)
	if err := open.probe(t, func(string) asm.Instructions { return list }); err != nil {
		return nil, errors.Join(err, open.close())
	}
	return open.close, nil
}

// drop takes records out of the ring, as often as tt-memtrace looks, until it is closed.
func drop(r *ringbuf.Reader) error {
	var record ringbuf.Record
	for {
		err := r.ReadInto(&record)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // there is none left
			r.SetDeadline(time.Now().Add(lookEvery))
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		}
	}
}
