package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/wire"
)

// What a gap in a recording lacks is in the state after it: a server is forwarded what
// is live at the end.
func TestForwardARecordingWithAGap(t *testing.T) {
	t.Setenv("RUNTIME_DIRECTORY", t.TempDir())
	pid := uint32(os.Getpid()) // the server has processes that are alive only
	alloc := func(buffer, size uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.Alloc, PID: pid, Time: origin, Device: 9, Buffer: buffer, Size: size}
	}
	placed := func(program, size uint64) aggregator.Event {
		return aggregator.Event{Kind: aggregator.CBPlaced, PID: pid, Time: origin, Device: 9, Program: program,
			CB: &aggregator.CircularBuffer{Address: 1 << 10, Size: size, Ranges: []aggregator.CoreRange{{}}}}
	}
	before := []aggregator.Event{
		{Kind: aggregator.ProcessStart, PID: pid, Time: origin, Process: &aggregator.Process{Started: 1}},
		{Kind: aggregator.DeviceOpen, PID: pid, Time: origin, Device: 9, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 3}}}},
		alloc(0x10, 1<<10), alloc(0x20, 1<<11), placed(1, 1<<12), placed(2, 1<<13),
	}
	accounts := aggregator.New()
	for _, events := range [][]aggregator.Event{before, { // the latter in the gap
		{Kind: aggregator.Free, PID: pid, Time: origin, Device: 9, Buffer: 0x10}, alloc(0x30, 1<<14),
		{Kind: aggregator.ProgramGone, PID: pid, Time: origin, Program: 1}, placed(3, 1<<15),
	}} {
		for i := range events {
			accounts.Apply(&events[i])
		}
	}
	events := append(before, accounts.State()...)
	events = append(events, alloc(0x40, 1<<16), aggregator.Event{Kind: aggregator.Free, PID: pid, Time: origin, Device: 9, Buffer: 0x20},
		aggregator.Event{Kind: aggregator.ProgramGone, PID: pid, Time: origin, Program: 2})
	b, err := io.ReadAll(recordingOf(t, events...))
	file, socket := filepath.Join(t.TempDir(), "r"), filepath.Join(t.TempDir(), "s")
	if err := errors.Join(err, os.WriteFile(file, b, 0o644)); err != nil {
		t.Fatal(err)
	}

	s, err := wire.Listen(wire.ServerOptions{Path: socket, Monotonic: func() uint64 { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- s.Run(ctx, func() { close(ready) }, func([]aggregator.Event) {}) }()
	defer func() {
		stop()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	}()
	<-ready
	cmd := newRoot()
	cmd.SetArgs([]string{"forward", "-q", "--socket", socket, "--from", file})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}

	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	query := wire.Record{Type: wire.Query, Device: 3, PID: int32(pid)}
	answer := make([]byte, wire.Newest)
	_, err = c.Write(query.Append(nil, wire.Newest))
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	var r wire.Record
	if err := errors.Join(err, r.Decode(answer)); err != nil {
		t.Fatal(err)
	}
	if r.DRAM != 1<<14+1<<16 || r.CB != 1<<15 {
		t.Errorf("the server has %d bytes of DRAM and %d of circular buffers", r.DRAM, r.CB)
	}
}
