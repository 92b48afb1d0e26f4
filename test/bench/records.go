package main

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
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
	fail := func(err error) (func() error, error) { return nil, errors.Join(err, open.close()) }
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "records", Type: ebpf.RingBuf, MaxEntries: tracer.DefaultRingBytes})
	if err != nil {
		return fail(fmt.Errorf("making the ring: %w", err))
	}
	open = append(open, ring.Close)
	ex, err := link.OpenExecutable(t.points.library)
	if err != nil {
		return fail(err)
	}
	for _, at := range t.points.list {
		var size int32
		switch at.symbol {
		case reserved: // of that nothing is sent
		case freed:
			size = int32(unsafe.Sizeof(bpf.MemtraceTtObject{}))
		default:
			size = int32(unsafe.Sizeof(bpf.MemtraceTtAlloc{}))
		}
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "Dual BSD/GPL", Instructions: sends(ring, size),
		})
		if err != nil {
			return fail(fmt.Errorf("loading what sends records: %w", err))
		}
		open = append(open, p.Close)
		l, err := ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{Addresses: []uint64{at.offset}, PID: t.pid})
		if err != nil {
			return fail(fmt.Errorf("attaching it to %s: %w", at.symbol, err))
		}
		open = append(open, l.Close)
	}
	reader, err := ringbuf.NewReader(ring)
	if err != nil {
		return fail(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- drop(reader) }()
	return func() error { return errors.Join(reader.Close(), <-ended, open.close()) }, nil
}

// sends are the instructions for a record of so many bytes, none for 0.
func sends(ring *ebpf.Map, size int32) asm.Instructions {
	end := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
	if size == 0 {
		return end
	}
	return append(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapPtr(asm.R1, ring.FD()), asm.Mov.Imm(asm.R2, size), asm.Mov.Imm(asm.R3, 0), asm.FnRingbufReserve.Call(),
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
		r.SetDeadline(time.Now().Add(lookEvery))
		for {
			err := r.ReadInto(&record)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if errors.Is(err, os.ErrClosed) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
}
