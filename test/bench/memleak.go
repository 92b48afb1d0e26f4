package main

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Arguments of a probed function in the registers that a uprobe's program is given.
const (
	secondArgument = 104
	thirdArgument  = 96
)

// memleak keeps in the kernel what bcc's memleak keeps: each live allocation with
// its size, time and stack, and sums by stack. Nothing is sent.
func memleak(t target) (func() error, error) {
	var open closers
	maps := map[string]*ebpf.Map{}
	for _, spec := range []ebpf.MapSpec{
		{Name: "sizes", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10240},
		{Name: "live", Type: ebpf.Hash, KeySize: 8, ValueSize: 24, MaxEntries: 1 << 17},
		{Name: "sums", Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 10240},
		{Name: "stacks", Type: ebpf.StackTrace, KeySize: 4, ValueSize: 8 * 127, MaxEntries: 10240},
	} {
		m, err := ebpf.NewMap(&spec)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("making the map %s: %w", spec.Name, err), open.close())
		}
		open = append(open, m.Close)
		maps[spec.Name] = m
	}
	programs := memleakPrograms(func(name string) int { return maps[name].FD() })
	if err := open.probe(t, func(symbol string) asm.Instructions { return programs[symbol] }); err != nil {
		return nil, errors.Join(err, open.close())
	}
	return open.close, nil
}

// onStack are the instructions that point a register into the program's stack.
func onStack(r asm.Register, offset int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, offset)}
}

// memleakPrograms are those of memleak, by symbol.
func memleakPrograms(fd func(string) int) map[string]asm.Instructions {
	const key, thread, stack, time, size = -8, -16, -24, -32, -40
	const sumCount, sum = -48, -56
	call := func(name string, f asm.BuiltinFunc, keyAt int32, value ...asm.Instruction) (list asm.Instructions) {
		list = append(list, asm.LoadMapPtr(asm.R1, fd(name)))
		list = append(list, onStack(asm.R2, keyAt)...)
		list = append(list, value...)
		return append(list, f.Call())
	}
	update := func(name string, keyAt, valueAt int32) asm.Instructions {
		return call(name, asm.FnMapUpdateElem, keyAt, append(onStack(asm.R3, valueAt), asm.Mov.Imm(asm.R4, 0))...)
	}
	program := func(parts ...asm.Instructions) (list asm.Instructions) {
		list = append(list, asm.Mov.Reg(asm.R6, asm.R1))
		for _, p := range parts {
			list = append(list, p...)
		}
		return append(list, asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	}
	argument := func(register int16, to int16) asm.Instructions {
		return asm.Instructions{asm.LoadMem(asm.R1, asm.R6, register, asm.DWord), asm.StoreMem(asm.RFP, to, asm.R1, asm.DWord)}
	}
	result := func(f asm.BuiltinFunc, to int16) asm.Instructions {
		return asm.Instructions{f.Call(), asm.StoreMem(asm.RFP, to, asm.R0, asm.DWord)}
	}
	// account adds R7 bytes and a count to the sums at R0.
	account := func(count int32) asm.Instructions {
		return asm.Instructions{
			asm.AddAtomic.Mem(asm.R0, asm.R7, asm.DWord, 0),
			asm.Mov.Imm(asm.R1, count), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 8),
		}
	}
	orEnd := asm.Instructions{asm.JEq.Imm(asm.R0, 0, "end")}
	return map[string]asm.Instructions{
		reserved: program(
			result(asm.FnGetCurrentPidTgid, thread), argument(thirdArgument, size), update("sizes", thread, size),
		),
		allocated: program(
			result(asm.FnGetCurrentPidTgid, thread), call("sizes", asm.FnMapLookupElem, thread), orEnd,
			asm.Instructions{asm.LoadMem(asm.R7, asm.R0, 0, asm.DWord), asm.StoreMem(asm.RFP, size, asm.R7, asm.DWord)},
			call("sizes", asm.FnMapDeleteElem, thread),
			result(asm.FnKtimeGetNs, time),
			asm.Instructions{asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, fd("stacks")), asm.Mov.Imm(asm.R3, 1<<8)}, // the user's stack
			result(asm.FnGetStackid, stack),
			argument(secondArgument, key), update("live", key, size),
			call("sums", asm.FnMapLookupElem, stack),
			asm.Instructions{asm.JNE.Imm(asm.R0, 0, "known"),
				asm.StoreMem(asm.RFP, sum, asm.R7, asm.DWord), asm.Mov.Imm(asm.R1, 1), asm.StoreMem(asm.RFP, sumCount, asm.R1, asm.DWord)},
			update("sums", stack, sum),
			asm.Instructions{asm.Ja.Label("end"), asm.Mov.Reg(asm.R1, asm.R0).WithSymbol("known")},
			account(1),
		),
		freed: program(
			argument(secondArgument, key), call("live", asm.FnMapLookupElem, key), orEnd,
			asm.Instructions{
				asm.LoadMem(asm.R7, asm.R0, 0, asm.DWord), asm.Neg.Imm(asm.R7, 0),
				asm.LoadMem(asm.R1, asm.R0, stack-size, asm.DWord), asm.StoreMem(asm.RFP, stack, asm.R1, asm.DWord),
			},
			call("live", asm.FnMapDeleteElem, key),
			call("sums", asm.FnMapLookupElem, stack), orEnd, account(-1),
		),
	}
}
