package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/session"
	"tt-memtrace/internal/telemetry"
	"tt-memtrace/internal/wire"
)

// driver makes the driver's files of some cards of one type.
func driver(t *testing.T, cards int, kind, device string) *telemetry.System {
	t.Helper()
	root := t.TempDir()
	for n := range cards {
		folder := fmt.Sprintf("sys/class/tenstorrent/tenstorrent!%d/", n)
		for name, text := range map[string]string{fmt.Sprintf("dev/tenstorrent/%d", n): "", folder + "tt_card_type": kind, folder + "device/device": device} {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return telemetry.New(root)
}

// A client that asks once, before any workload, gets the host's devices; a process that has
// one open knows it better.
func TestServedDevices(t *testing.T) {
	l := newLive(nil, true)
	ready := make(chan struct{})
	at := &tracing{live: l, ready: ready, host: driver(t, 4, "n300", "0x401e"), traced: map[int32]bool{}}
	if n := at.Devices(); n != 8 {
		t.Errorf("four n300 have %d devices", n)
	}
	want := wire.Device{Available: true, Arch: 2, DRAM: 1072340928, DRAMBanks: 12, L1: 1360544, L1Banks: 64}
	for n := range int32(8) {
		if d := at.Device(n); d != want {
			t.Errorf("device %d: %+v", n, d)
		}
	}
	if d := at.Device(8); d != (wire.Device{}) {
		t.Errorf("device 8: %+v", d)
	}
	if o := at.Objects(); !o.Incomplete {
		t.Error("what processes held before is not read yet, and it is complete")
	}
	close(ready)
	if o := at.Objects(); len(o.Buffers)+len(o.Kernels) > 0 || o.Incomplete {
		t.Errorf("%+v", o)
	}

	at = &tracing{live: l, ready: ready, host: driver(t, 1, "p100a", "0xb140"), traced: map[int32]bool{}}
	if d := at.Device(0); d != (wire.Device{Available: true, Arch: 3}) {
		t.Errorf("a card whose sizes are not known: %+v", d)
	}
	process := func(pid uint32, source aggregator.Source, chips ...aggregator.Chip) []aggregator.Event {
		return []aggregator.Event{
			{Kind: aggregator.ProcessStart, PID: pid, Process: &aggregator.Process{Started: 1, Source: source}},
			{Kind: aggregator.DeviceOpen, PID: pid, Device: 1, Opened: &aggregator.Opened{Chips: chips, Arch: "wormhole_b0"}},
			{Kind: aggregator.Alloc, PID: pid, Device: 1, Buffer: 0x10, Memory: aggregator.L1, Size: 1000},
			{Kind: aggregator.KernelLoaded, PID: pid, Device: 1, Program: 1, Kernel: &aggregator.Kernel{ID: 0x20, Bytes: 50, Sized: true}},
		}
	}
	at = &tracing{live: l, ready: ready, host: driver(t, 0, "", ""), traced: map[int32]bool{}}
	for _, events := range [][]aggregator.Event{
		process(7, aggregator.Traced, aggregator.Chip{Number: 2}, aggregator.Chip{Number: 3}), process(8, aggregator.Reported, aggregator.Chip{Number: 5}),
	} {
		for i := range events {
			l.Accounts().Apply(&events[i])
			at.event(&events[i])
		}
	}
	if !at.Traced(7) || at.Traced(8) {
		t.Error("process 7 is traced, and 8 is not")
	}
	if n := at.Devices(); n != 6 {
		t.Errorf("%d devices", n)
	}
	if d := at.Device(3); d != (wire.Device{Available: true, Arch: 2, Buffers: 1, Totals: wire.Totals{L1: 1000, Kernel: 50}}) {
		t.Errorf("device 3: %+v", d)
	}
	o := at.Objects()
	if len(o.Buffers) != 2 || len(o.Kernels) != 2 || o.Incomplete {
		t.Fatalf("%+v", o)
	}
	if o.Buffers[1] != (wire.LiveBuffer{Device: 3, Memory: 1, PID: 7, ID: 0x10, Size: 1000, References: 1}) {
		t.Errorf("%+v", o.Buffers)
	}
	if k := o.Kernels[0]; k.Device != 2 || k.PID != 7 || k.ID != 0x20 || k.Size != 50 {
		t.Errorf("%+v", o.Kernels)
	}
	// A process that numbers its chips itself has buffers that no device lists.
	events := process(9, aggregator.Traced, aggregator.Chip{Space: 9, Number: 0})
	for i := range events {
		l.Accounts().Apply(&events[i])
	}
	if o := at.Objects(); len(o.Buffers) != 2 || !o.Incomplete {
		t.Errorf("%+v", o)
	}
}

// What clients report beside a recording happens at the recording's present: its clock is not this host's.
func TestClientsBesideARecording(t *testing.T) {
	l := newLive(nil, true)
	l.Clock = session.Clock{Now: func() uint64 { return 77 }, Wall: func(uint64) time.Time { return time.Time{} }}
	s := sockets{serve: filepath.Join(t.TempDir(), "s")}
	if err := s.addServer(l); err != nil {
		t.Fatal(err)
	}
	events := make(chan aggregator.Event, 10)
	l.AddSink(session.Sink{Event: func(e *aggregator.Event) { events <- *e }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Session.Run(ctx, func() {}) }()
	<-l.Ready()
	c, err := net.Dial("unix", s.serve)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := wire.Record{Type: wire.Alloc, PID: int32(os.Getpid()), ID: 5, Size: 100}
	if _, err := c.Write(r.Append(nil, 144)); err != nil {
		t.Fatal(err)
	}
	for {
		e := <-events
		if e.Time != 77 {
			t.Errorf("%v at %d", e.Kind, e.Time)
		}
		if e.Kind == aggregator.Alloc {
			break
		}
	}
	cancel()
	if err := errors.Join(<-done, l.Session.Close()); err != nil {
		t.Error(err)
	}
}
