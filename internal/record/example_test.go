package record_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/record"
)

// A recording is written event by event, and read block by block.
func Example() {
	var file bytes.Buffer
	w, err := record.NewWriter(&file, record.Header{Host: "here", Source: "an example", Began: time.Now()})
	if err != nil {
		log.Fatal(err)
	}
	err = w.Write([]aggregator.Event{
		{Kind: aggregator.DeviceOpen, PID: 7, Time: 1, Device: 0x10, Opened: &aggregator.Opened{Chips: []aggregator.Chip{{Number: 0}}}},
		{Kind: aggregator.Alloc, PID: 7, Time: 2, Device: 0x10, Buffer: 0x20, Memory: aggregator.DRAM, Size: 4096},
	})
	if err = errors.Join(err, w.Close()); err != nil {
		log.Fatal(err)
	}

	r, err := record.NewReader(&file)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("made on", r.Header().Host)
	accounts := aggregator.New()
	for {
		events, err := r.Next()
		for i := range events {
			accounts.Apply(&events[i])
		}
		if err == io.EOF {
			break
		} else if err != nil { // ErrCut or ErrDamaged: all before was read
			log.Fatal(err)
		}
	}
	fmt.Println(len(accounts.Buffers(7)), "buffer")
	// Output:
	// made on here
	// 1 buffer
}

// A Player is a source of events: what replays recordings at their own pace, or, with
// Speed 0, as fast as it goes.
func ExamplePlayer() {
	f, err := os.Open("testdata/run.ttm")
	if err != nil {
		log.Fatal(err)
	}
	p, err := record.NewPlayer(record.PlayerOptions{Files: []io.ReadCloser{f}, Notice: func(text string) { fmt.Println(text) }})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	allocs := 0
	err = p.Run(context.Background(), func() {}, func(events []aggregator.Event) {
		for i := range events {
			if events[i].Kind == aggregator.Alloc {
				allocs++
			}
		}
	})
	fmt.Println(allocs, "allocations", err)
	// Output:
	// 16 allocations <nil>
}
