package record

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"

	"tt-memtrace/aggregator"
)

// block is a block that waits to be written.
type block struct {
	prefix
	data []byte
	// atRisk is how many events are lost with it; reported of them are losses that it
	// reports. state: it is a part of a state.
	atRisk, reported uint64
	// since is the time of its first event.
	since uint64
	state bool
}

// headerOf completes a header into the first block of a recording.
func headerOf(h Header) (block, error) {
	h.Version = Version
	h.Kinds = []string{""}
	for k := aggregator.Kind(1); k <= aggregator.Lost; k++ {
		h.Kinds = append(h.Kinds, k.String())
	}
	h.Types = map[string][]member{}
	typesOf(root, h.Types)
	b, err := json.Marshal(h)
	if err != nil {
		return block{}, fmt.Errorf("describing the recording: %w", err)
	}
	return block{prefix: prefix{kind: headerBlock}, data: append(b, '\n')}, nil
}

// cut ends the block that is being made.
func (c *encoder) cut() block {
	b := block{prefix: prefix{kind: eventBlock, events: c.events, last: c.last}, data: c.buf}
	c.reset()
	return b
}

// blockWriter compresses blocks and writes each in one call.
type blockWriter struct {
	zstd *zstd.Encoder
	out  []byte
}

func newBlockWriter() *blockWriter {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithWindowSize(512<<10))
	if err != nil {
		panic(err) // the options are wrong
	}
	return &blockWriter{zstd: z}
}

// write returns how many bytes of the block were written.
func (w *blockWriter) write(to io.Writer, b block) (int, error) {
	w.out = append(w.out[:0], make([]byte, prefixBytes)...)
	if b.kind == eventBlock {
		w.out = w.zstd.EncodeAll(b.data, w.out)
	} else {
		w.out = append(w.out, b.data...)
	}
	b.raw, b.stored = uint32(len(b.data)), uint32(len(w.out)-prefixBytes)
	b.put(w.out, w.out[prefixBytes:])
	return to.Write(w.out)
}

// Writer writes a recording to a stream. It is not safe for concurrent use.
type Writer struct {
	to     io.Writer
	blocks *blockWriter
	events *encoder
}

// NewWriter writes the header, of which the caller fills in what is not of the format.
func NewWriter(to io.Writer, h Header) (*Writer, error) {
	w := &Writer{to: to, blocks: newBlockWriter(), events: newEncoder()}
	b, err := headerOf(h)
	if err == nil {
		_, err = w.blocks.write(to, b)
	}
	return w, err
}

// Write takes events in. They reach the stream a block at a time.
func (w *Writer) Write(events []aggregator.Event) error {
	for e := range slices.Values(events) {
		w.events.add(&e)
		if w.events.full() {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flush writes what waits.
func (w *Writer) Flush() error {
	if w.events.events == 0 {
		return nil
	}
	_, err := w.blocks.write(w.to, w.events.cut())
	return err
}

// Close ends the recording, and leaves the stream open.
func (w *Writer) Close() error {
	err := w.Flush()
	if err == nil {
		_, err = w.blocks.write(w.to, block{prefix: prefix{kind: endBlock}})
	}
	return err
}
