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
	"tt-memtrace/tracer"
)

const (
	noWakeup = 1 // BPF_RB_NO_WAKEUP
	// lookEvery is how often the ring is looked at: as often as tt-memtrace does under load.
	lookEvery = 10 * time.Millisecond
)

// records sends a record where tt-memtrace sends one, as long as its own, in which are only when, who and the second argument: the
// least that any program does which says to user space what happened.
func records(t target) (func() error, error) {
	var open closers
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "records", Type: ebpf.RingBuf, MaxEntries: tracer.DefaultRingBytes})
	if err != nil {
		return nil, fmt.Errorf("making the ring: %w", err)
	}
	open = append(open, ring.Close)
	if err := open.probe(t, func(symbol string) asm.Instructions {
		switch symbol {
		case reserved:
			return sends(ring, 0)
		case freed:
			return sends(ring, unsafe.Sizeof(bpf.MemtraceTtObject{}))
		}
		return sends(ring, unsafe.Sizeof(bpf.MemtraceTtAlloc{}))
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

// sends are the instructions for a record of so many bytes, none for 0.
func sends(ring *ebpf.Map, size uintptr) asm.Instructions {
	end := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
	if size == 0 {
		return end
	}
	return append(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapPtr(asm.R1, ring.FD()), asm.Mov.Imm(asm.R2, int32(size)), asm.Mov.Imm(asm.R3, 0), asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Reg(asm.R7, asm.R0),
		asm.FnKtimeGetNs.Call(), asm.StoreMem(asm.R7, 0, asm.R0, asm.DWord),
		asm.FnGetCurrentPidTgid.Call(), asm.StoreMem(asm.R7, 8, asm.R0, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, secondArgument, asm.DWord), asm.StoreMem(asm.R7, 16, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R7), asm.Mov.Imm(asm.R2, noWakeup), asm.FnRingbufSubmit.Call(),
	}, end...)
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
