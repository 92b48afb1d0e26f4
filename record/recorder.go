package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tt-memtrace/aggregator"
)

// flushEvery is how long events wait before they are written, at the most.
const flushEvery = 500 * time.Millisecond

// waiting is how many blocks wait for the disk at the most: 16 MiB, and a state
// beside. What comes then is counted as lost in the recording, and nowhere else.
const waiting = 64

// Options say where to record, and how much.
type Options struct {
	// Path of the file, which must not be there; "-" is standard output.
	Path string
	// MaxBytes of a file, behind the state that it begins with, and MaxAge, 0 for no
	// limit. Then Path is renamed to Path.1, what was Path.1 to Path.2, and so on, and
	// a new file begins, with the state.
	MaxBytes int64
	MaxAge   time.Duration
	// Keep is how many files are kept beside the newest; 0 keeps all.
	Keep int
	// Header describes the recording; it is asked for with each file.
	Header func() Header
	// State is the accounts as events. It is called from within Take and Booked.
	State func() []aggregator.Event
	// Failed is told, once, why nothing more is recorded. It may be nil.
	Failed func(error)
}

// Recorder records into files. What can wait, disk and compression, is not done
// by who calls Take.
type Recorder struct {
	o      Options
	mu     sync.Mutex
	events *encoder
	// worth is how many events would be lost with the block that is being made, and
	// dropped how many were of which the recording does not say so yet.
	worth   uint64
	dropped uint64
	// untold: books were too large, and what came of them is still to be told.
	untold bool
	began  time.Time
	queue  chan job
	done   chan struct{}
	stop   chan struct{}
	idle   sync.WaitGroup

	// telling: a state waits for the disk. That there is one at a time bounds the memory.
	telling  atomic.Bool
	written  atomic.Int64 // of this file behind the state that it began with, bytes
	total    atomic.Int64
	recorded atomic.Uint64
	blocks   *blockWriter
	file     *os.File
	err      error
}

// job is blocks to write, one behind the other. With state, one is among them, and
// with fresh the beginning of a new file.
type job struct {
	blocks       []block
	state, fresh bool
}

// NewRecorder creates the file.
func NewRecorder(o Options) (*Recorder, error) {
	r := &Recorder{o: o, events: newEncoder(), queue: make(chan job, waiting), done: make(chan struct{}),
		stop: make(chan struct{}), blocks: newBlockWriter(), began: time.Now()}
	if err := r.open(); err != nil {
		return nil, err
	}
	header, err := headerOf(o.Header())
	if err == nil {
		err = r.write(header)
	}
	if err != nil {
		r.file.Close()
		return nil, err
	}
	go r.writeAll()
	r.idle.Go(r.flushAll)
	return r, nil
}

// Path of the newest file, Bytes in all files and Events recorded so far.
func (r *Recorder) Path() string   { return r.o.Path }
func (r *Recorder) Bytes() int64   { return r.total.Load() }
func (r *Recorder) Events() uint64 { return r.recorded.Load() }

// Take takes events in before they are booked. It does not wait for the disk.
func (r *Recorder) Take(events []aggregator.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over() && r.room() {
		r.rotate()
	}
	r.add(events)
}

// Booked is told when what was taken in is booked.
func (r *Recorder) Booked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.untold && r.room() {
		r.tell()
	}
}

// over says whether the file is large or old enough.
func (r *Recorder) over() bool {
	return r.o.MaxBytes > 0 && r.written.Load() >= r.o.MaxBytes || r.o.MaxAge > 0 && time.Since(r.began) >= r.o.MaxAge
}

func (r *Recorder) rotate() {
	header, err := headerOf(r.o.Header())
	if err != nil {
		return
	}
	r.began = time.Now()
	r.tell(block{prefix: prefix{kind: endBlock}}, header)
}

// room says whether a state can be handed over.
func (r *Recorder) room() bool { return !r.telling.Load() && len(r.queue) < cap(r.queue) }

// tell hands over what there is and behind it, in a new file if that is begun, the
// state, for which there has to be room: as one job, however large, because a part
// of a state would be no state.
func (r *Recorder) tell(file ...block) {
	r.telling.Store(true)
	r.untold = false
	state := r.o.State()
	r.confess(state[0].Time)
	blocks := append(r.rest(), file...)
	for i := range state {
		r.put(&state[i])
		if r.events.full() {
			blocks = append(blocks, r.rest()...)
		}
	}
	r.queue <- job{append(blocks, r.rest()...), true, len(file) > 0}
}

func (r *Recorder) add(events []aggregator.Event) {
	for i := range events {
		if b := events[i].Books; b != nil && len(b.Buffers)+len(b.Allocators)+len(b.Programs)+len(b.Touched) > maxBooks {
			r.untold = true // the state tells what they changed
			continue
		}
		r.confess(events[i].Time)
		r.put(&events[i])
		if r.events.full() {
			r.cut()
		}
	}
}

// confess has the recording say what is missing of it up to here.
func (r *Recorder) confess(at uint64) {
	if r.dropped > 0 {
		r.put(&aggregator.Event{Kind: aggregator.Lost, Time: at, Count: r.dropped, Anyone: true})
		r.dropped = 0
	}
}

func (r *Recorder) put(e *aggregator.Event) {
	r.events.add(e)
	if e.Kind == aggregator.Lost {
		r.worth += e.Count
	} else {
		r.worth++
	}
}

// rest is the block that was begun, if there is one.
func (r *Recorder) rest() []block {
	if r.events.events == 0 {
		return nil
	}
	r.worth = 0
	return []block{r.events.cut()}
}

// cut hands the block over to who writes it.
func (r *Recorder) cut() {
	worth := r.worth
	for _, b := range r.rest() {
		select {
		case r.queue <- job{blocks: []block{b}}:
		default:
			r.dropped += worth
		}
	}
}

// flushAll cuts blocks that would wait for too long.
func (r *Recorder) flushAll() {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C:
			r.mu.Lock()
			r.cut()
			r.mu.Unlock()
		}
	}
}

// writeAll writes blocks until the queue is closed. After a failure it only
// empties the queue.
func (r *Recorder) writeAll() {
	defer close(r.done)
	for j := range r.queue {
		for _, b := range j.blocks {
			if r.err != nil {
				break
			}
			if b.kind == headerBlock {
				r.err = r.next()
			}
			if r.err == nil {
				r.err = r.write(b)
			}
			if r.err != nil && r.o.Failed != nil {
				r.o.Failed(r.err)
			}
		}
		if j.fresh {
			r.written.Store(0) // or else a state that is larger than a file may be begins the next one
		}
		if j.state {
			r.telling.Store(false)
		}
	}
}

// write writes a block, whole or not at all where the file can be cut.
func (r *Recorder) write(b block) error {
	n, err := r.blocks.write(r.file, b)
	if err != nil {
		if at, e := r.file.Seek(0, io.SeekCurrent); e == nil && n > 0 {
			_ = r.file.Truncate(at - int64(n))
		}
		return fmt.Errorf("recording to %s: %w", r.o.Path, errors.Unwrap(err))
	}
	r.written.Add(int64(n))
	r.total.Add(int64(n))
	r.recorded.Add(uint64(b.events))
	return nil
}

func (r *Recorder) open() error {
	if r.o.Path == "-" {
		r.file = os.Stdout
		return nil
	}
	var err error
	r.file, err = os.OpenFile(r.o.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("creating the recording: %w, and is not overwritten", err)
	}
	if err != nil {
		return fmt.Errorf("creating the recording: %w", err)
	}
	return nil
}

// next makes room for a new file, by renaming what is there.
func (r *Recorder) next() error {
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("closing the recording: %w", err)
	}
	n := 1
	for r.o.Keep == 0 || n < r.o.Keep {
		if _, err := os.Lstat(r.numbered(n)); err != nil {
			break
		}
		n++
	}
	for ; n >= 1; n-- {
		// The oldest is replaced where no more are kept.
		if err := os.Rename(r.numbered(n-1), r.numbered(n)); err != nil {
			return fmt.Errorf("rotating the recording: %w", err)
		}
	}
	return r.open()
}

// numbered is the name of an older file, 0 the newest.
func (r *Recorder) numbered(n int) string {
	if n == 0 {
		return r.o.Path
	}
	return r.o.Path + "." + strconv.Itoa(n)
}

// Close ends the recording and returns why it failed, if it did.
func (r *Recorder) Close() error {
	close(r.stop)
	r.idle.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	blocks := r.rest()
	if r.untold {
		r.dropped++
	}
	r.confess(0)
	blocks = append(blocks, r.rest()...)
	r.queue <- job{blocks: append(blocks, block{prefix: prefix{kind: endBlock}})}
	close(r.queue)
	<-r.done
	if r.file == os.Stdout {
		return r.err
	}
	if err := r.file.Close(); err != nil && r.err == nil {
		r.err = fmt.Errorf("closing the recording: %w", err)
	}
	return r.err
}
