package record

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
	"tt-memtrace/internal/plural"
)

const (
	// flushEvery is the longest time that an event waits to be written.
	flushEvery = 500 * time.Millisecond
	// maxQueue bounds the blocks that wait for the disk: 16 MiB, in addition to one
	// state. Further blocks are lost, and the recording says so.
	maxQueue = 64
)

// maintainEvery is how often old files are removed and, after a failed write, the disk
// is tried again. Tests shorten it.
var maintainEvery = 5 * time.Second

// Options say where to record, and how much.
type Options struct {
	// Path of the file; "-" is standard output. The file name may have strftime
	// conversions such as %Y-%m-%d, for the local time at which a file begins. A
	// recording that is already there is renamed to Path.1, that to Path.2, and so on.
	Path string
	// MaxBytes of a file, without the state that it begins with, and MaxAge; 0 for no
	// limit. Then a new file begins, with the state.
	MaxBytes int64
	MaxAge   time.Duration
	Keep     Retention
	// Header describes the recording; the recorder calls it for each file.
	Header func() Header
	// State is the aggregator's state as events. Take and Applied call it.
	State func() []aggregator.Event
	// Notice, which may be nil, is called when recording pauses because a write failed,
	// and when it resumes.
	Notice func(string)
	// Failed, which may be nil, is called when standard output failed, which is final.
	Failed func(error)
}

// Stats are counters of a recorder.
type Stats struct {
	// Events and Bytes written, and Lost events that are missing in the recording
	// because the disk was full, failed or too slow.
	Events, Lost, Bytes uint64
	// Files begun, and Failures: how often recording paused.
	Files, Failures uint64
	// Paused: the last write failed.
	Paused bool
	// Written is the time of the last write.
	Written time.Time
}

// Recorder records into files. Compression and writing happen in a goroutine of its
// own, so callers never wait for the disk.
type Recorder struct {
	o     Options
	files *files // nil for standard output

	mu     sync.Mutex
	events *encoder
	// atRisk counts the events that are lost if the block being encoded is; reported of them are losses that this
	// block reports. since is the time of its first event.
	atRisk, reported, since uint64
	// dropped counts lost events that the recording does not report yet.
	dropped missing
	// needState: an event that was too large for a block was skipped, so a state has to follow.
	needState bool
	needSince uint64 // its time
	// stateDue: events were lost, so a state follows when the disk has caught up. Until then the recording marks a
	// replay as inexact, whatever it compares.
	stateDue bool
	began    time.Time
	// run and part are those of the newest header.
	run, part uint64
	queue     chan job
	done      chan struct{}
	stop      chan struct{}
	flushing  sync.WaitGroup

	// stateQueued: a state waits for the disk. Only one at a time does, which bounds memory.
	stateQueued atomic.Bool
	// unwritten counts events that could not be written; they move to dropped. While paused, resume asks for a state
	// to continue with, and fileGone for a new file.
	unwrittenMu              sync.Mutex
	unwritten                missing
	paused, resume, fileGone atomic.Bool

	fileBytes                              atomic.Int64 // of the newest file, without its state
	recorded, lost, bytes, begun, failures atomic.Uint64
	writtenAt                              atomic.Int64 // ns since the Unix epoch

	// Only the writing goroutine uses these.
	blocks *blockWriter
	file   *os.File
	path   string
	size   int64 // of the file
	err    error // while paused
}

// job is consecutive blocks to write.
type job struct {
	blocks []block
	// state: among them is a state. newFile: they begin a new file.
	state, newFile bool
}

// NewRecorder creates the first file.
func NewRecorder(o Options) (*Recorder, error) {
	r := &Recorder{o: o, events: newEncoder(), queue: make(chan job, maxQueue), done: make(chan struct{}),
		stop: make(chan struct{}), blocks: newBlockWriter(), began: time.Now(), file: os.Stdout, path: o.Path}
	if o.Path != "-" {
		var err error
		if r.files, err = newFiles(o.Path, o.Keep); err != nil {
			return nil, err
		}
		if err = r.open(); err != nil {
			return nil, err
		}
	}
	header, err := r.header()
	if err == nil {
		err = r.write(header)
	}
	if err != nil {
		r.file.Close()
		return nil, err
	}
	go r.writeAll()
	r.flushing.Go(r.flushAll)
	return r, nil
}

// Stats may be called at any time.
func (r *Recorder) Stats() Stats {
	s := Stats{Events: r.recorded.Load(), Lost: r.lost.Load(), Bytes: r.bytes.Load(), Files: r.begun.Load(),
		Failures: r.failures.Load(), Paused: r.paused.Load()}
	if at := r.writtenAt.Load(); at > 0 {
		s.Written = time.Unix(0, at)
	}
	return s
}

// header is that of the next file.
func (r *Recorder) header() (block, error) {
	h := r.o.Header()
	if r.part++; r.part == 1 {
		r.run = h.Monotonic
	}
	h.Run, h.Part = r.run, r.part
	return headerOf(h)
}

// Take records events before the aggregator applies them. It does not wait for the disk.
func (r *Recorder) Take(events []aggregator.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countUnwritten()
	switch over := r.over(); {
	case !r.room():
	case r.paused.Load():
		if r.resume.CompareAndSwap(true, false) {
			r.putState(over || r.fileGone.Load())
		}
	case over:
		r.putState(true)
	}
	r.add(events)
}

// Applied is called after the aggregator has applied what Take got.
func (r *Recorder) Applied() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if (r.needState || r.stateDue && !r.paused.Load() && len(r.queue) <= cap(r.queue)/2) && r.room() {
		r.putState(r.paused.Load() && r.fileGone.Load())
	}
}

// over reports whether the file has reached its limit of size or age.
func (r *Recorder) over() bool {
	return r.o.MaxBytes > 0 && r.fileBytes.Load() >= r.o.MaxBytes || r.o.MaxAge > 0 && time.Since(r.began) >= r.o.MaxAge
}

// room reports whether the queue can take a state.
func (r *Recorder) room() bool { return !r.stateQueued.Load() && len(r.queue) < cap(r.queue) }

// putState queues what is encoded so far and the state, for which there must be room. It
// is one job, whatever its size, because a part of a state is useless.
func (r *Recorder) putState(newFile bool) {
	var file []block
	if newFile {
		header, err := r.header()
		if err != nil {
			return
		}
		r.began = time.Now()
		file = []block{{prefix: prefix{kind: endBlock}}, header}
	}
	r.stateQueued.Store(true)
	r.needState, r.stateDue = false, false
	state := r.o.State()
	gone := newFile && r.fileGone.Load()
	if gone {
		r.lose(r.cutBlock()) // the file that it belongs to is gone
	}
	r.reportLoss()
	var blocks []block
	if gone {
		blocks = append(file[1:], r.cutBlock()...)
	} else {
		blocks = append(r.cutBlock(), file...)
	}
	for i := range state {
		r.put(&state[i])
		if r.events.full() || i == len(state)-1 {
			b := r.cutBlock()[0]
			b.state, b.atRisk, b.reported = true, 0, 0
			blocks = append(blocks, b)
		}
	}
	r.queue <- job{blocks: blocks, state: true, newFile: newFile}
}

func (r *Recorder) add(events []aggregator.Event) {
	for i := range events {
		r.reportLoss()
		r.put(&events[i])
		if r.events.full() {
			r.cut()
		}
	}
}

// reportLoss adds an event with the number of missing events before it, at the time of the first one: from there on a
// replay shows that something is missing.
func (r *Recorder) reportLoss() {
	if n := r.dropped.events; n > 0 {
		r.put(&aggregator.Event{Kind: aggregator.Lost, Time: r.dropped.since, Count: n, Anyone: true})
		r.reported += n
		r.dropped = missing{}
	}
}

// missing counts events that are not in the recording, since the time of the first.
type missing struct{ events, since uint64 }

func (m *missing) add(n, since uint64) {
	if n == 0 {
		return
	}
	if m.events == 0 || since < m.since {
		m.since = since
	}
	m.events += n
}

// countUnwritten takes over the number of events that could not be written.
func (r *Recorder) countUnwritten() {
	r.unwrittenMu.Lock()
	n := r.unwritten
	r.unwritten = missing{}
	r.unwrittenMu.Unlock()
	r.dropped.add(n.events, n.since)
}

func (r *Recorder) put(e *aggregator.Event) {
	if r.atRisk == 0 {
		r.since = e.Time
	}
	r.events.add(e)
	if e.Kind == aggregator.Lost {
		r.atRisk += e.Count
	} else {
		r.atRisk++
	}
}

// cutBlock is the block being encoded, if it has any event.
func (r *Recorder) cutBlock() []block {
	if r.events.events == 0 {
		return nil
	}
	b := r.events.cut()
	b.atRisk, b.reported, b.since = r.atRisk, r.reported, r.since
	r.atRisk, r.reported = 0, 0
	return []block{b}
}

// cut queues the block being encoded, or loses it if the queue is full.
func (r *Recorder) cut() {
	for _, b := range r.cutBlock() {
		select {
		case r.queue <- job{blocks: []block{b}}:
		default:
			r.lose([]block{b})
		}
	}
}

// lose counts blocks that are not queued.
func (r *Recorder) lose(blocks []block) {
	for _, b := range blocks {
		r.stateDue = true
		r.dropped.add(b.atRisk, b.since)
		r.lost.Add(b.atRisk - b.reported)
	}
}

// flushAll cuts blocks that would wait too long.
func (r *Recorder) flushAll() {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C:
			r.mu.Lock()
			r.countUnwritten()
			r.cut()
			r.mu.Unlock()
		}
	}
}

// writeAll writes blocks until the queue is closed.
func (r *Recorder) writeAll() {
	defer close(r.done)
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		select {
		case j, ok := <-r.queue:
			if !ok {
				return
			}
			r.writeJob(j)
		case <-tick.C:
			r.maintain()
		}
	}
}

// writeJob writes blocks. After a failure, only a state is tried.
func (r *Recorder) writeJob(j job) {
	if r.err != nil && (r.files == nil || !j.state) {
		r.drop(j.blocks)
	} else {
		state := int64(-1) // where it begins in the file
		for i, b := range j.blocks {
			if b.state && state < 0 {
				state = r.size
			}
			if err := r.writeBlock(b); err != nil {
				if state >= 0 {
					r.truncate(state)
				}
				r.pause(err, j.blocks[i:])
				break
			}
			if j.state && i == len(j.blocks)-1 && r.err != nil {
				r.resumed()
			}
		}
	}
	if j.newFile {
		r.fileBytes.Store(0) // otherwise a state larger than MaxBytes would begin the next file
	}
	if j.state {
		r.stateQueued.Store(false)
	}
}

func (r *Recorder) writeBlock(b block) error {
	if b.kind == headerBlock {
		if r.file != nil {
			err := r.file.Close()
			if r.file = nil; err != nil {
				return fmt.Errorf("closing the recording: %w", err)
			}
		}
		if err := r.open(); err != nil {
			return err
		}
	}
	return r.write(b)
}

func (r *Recorder) open() (err error) {
	r.file, err = r.files.create(time.Now())
	if err != nil {
		r.file = nil
		return err
	}
	r.path, r.size = r.file.Name(), 0
	r.begun.Add(1)
	return nil
}

// write writes a block, all of it or, where the file can be truncated, nothing.
func (r *Recorder) write(b block) error {
	if r.file == nil {
		return fmt.Errorf("recording to %s: no file is open", r.o.Path)
	}
	n, err := r.blocks.write(r.file, b)
	if err != nil {
		if n > 0 {
			r.truncate(r.size)
		}
		return fmt.Errorf("recording to %s: %w", r.path, errors.Unwrap(err))
	}
	r.size += int64(n)
	r.fileBytes.Add(int64(n))
	r.bytes.Add(uint64(n))
	r.recorded.Add(uint64(b.events))
	r.writtenAt.Store(time.Now().UnixNano())
	return nil
}

// truncate cuts the file to a size, where it is one that can be.
func (r *Recorder) truncate(size int64) {
	if r.file == nil {
		return
	}
	if _, err := r.file.Seek(size, io.SeekStart); err == nil && r.file.Truncate(size) == nil {
		r.size = size
	}
}

// drop counts blocks that are not written.
func (r *Recorder) drop(blocks []block) {
	for _, b := range blocks {
		r.unwrittenMu.Lock()
		r.unwritten.add(b.atRisk, b.since)
		r.unwrittenMu.Unlock()
		r.lost.Add(b.atRisk - b.reported)
	}
}

// pause drops blocks because a write failed.
func (r *Recorder) pause(err error, blocks []block) {
	r.drop(blocks)
	first := r.err == nil
	r.err = err
	if r.files != nil && r.file != nil && r.size == 0 { // its header did not fit
		r.file.Close()
		os.Remove(r.path)
		r.file = nil
	}
	r.fileGone.Store(r.file == nil)
	r.paused.Store(true)
	if !first {
		return
	}
	r.failures.Add(1)
	switch {
	case r.files == nil && r.o.Failed != nil:
		r.o.Failed(err)
	case r.o.Notice != nil:
		r.o.Notice(fmt.Sprintf("%v: recording pauses, tracing continues", err))
	}
}

func (r *Recorder) resumed() {
	r.err = nil
	r.fileGone.Store(false)
	r.paused.Store(false)
	if r.o.Notice != nil {
		r.o.Notice(fmt.Sprintf("recording to %s resumes; %s missing and marked as lost", r.path, plural.Of(r.lost.Load(), "event is", "events are")))
	}
}

// maintain removes old files and, while paused, asks for a state if the disk has room again.
func (r *Recorder) maintain() {
	if r.files == nil {
		return
	}
	newest, size := "", int64(0)
	if r.file != nil {
		newest, size = filepath.Base(r.path), r.size
	}
	r.files.prune(time.Now(), newest, size)
	if r.err != nil && r.writable() {
		r.resume.Store(true)
	}
}

// writable tries, after a failure, whether a megabyte can be written.
func (r *Recorder) writable() bool {
	const room = 1 << 20
	if r.file == nil {
		var s unix.Statfs_t
		return unix.Statfs(r.files.dir, &s) == nil && s.Bavail*uint64(s.Bsize) >= room && unix.Access(r.files.dir, unix.W_OK) == nil
	}
	err := unix.Fallocate(int(r.file.Fd()), 0, r.size, room)
	if err == nil {
		err = r.file.Truncate(r.size)
	}
	return err == nil || errors.Is(err, unix.EOPNOTSUPP)
}

// Close ends the recording. It returns why the last write failed, if it did, and how much is missing then.
func (r *Recorder) Close() error {
	err := r.close()
	if n := r.lost.Load(); err != nil && n > 0 {
		return fmt.Errorf("%w: %s missing", err, plural.Of(n, "event is", "events are"))
	}
	return err
}

func (r *Recorder) close() error {
	close(r.stop)
	r.flushing.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.cutBlock() {
		r.queue <- job{blocks: []block{b}}
	}
	close(r.queue)
	<-r.done
	// Everything that can be written is written: report the missing rest last.
	r.countUnwritten()
	if r.needState {
		r.dropped.add(1, r.needSince)
		r.lost.Add(1)
	}
	r.reportLoss()
	if r.file != nil && (r.err == nil || r.files != nil) {
		for _, b := range append(r.cutBlock(), block{prefix: prefix{kind: endBlock}}) {
			if err := r.write(b); err != nil {
				r.err = cmp.Or(r.err, err)
				break
			}
		}
	}
	if r.file == nil || r.files == nil {
		return r.err
	}
	if err := r.file.Close(); err != nil && r.err == nil {
		r.err = fmt.Errorf("closing the recording: %w", err)
	}
	return r.err
}
