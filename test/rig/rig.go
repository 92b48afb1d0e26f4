// Package rig runs the real ttnn runtime on mock chips, for tests that have no hardware.
//
// rig.py, next to this file, installs releases of the runtime and knows the environment of a run; this
// package starts workloads in it, talks to them, and removes what they leave behind.
//
//	runtime, err := rig.Install(ctx, rig.DefaultRelease)
//	if errors.Is(err, rig.ErrUnavailable) { t.Skip(err) }
//	run, err := runtime.Start(ctx, rig.Options{Cluster: "t3k", Script: rig.Workload})
//	defer run.Close()
//	for {
//		rest, err := run.Rest(time.Minute)
//		// compare with rest.Devices
//		if rest.Last { break }
//		run.Send("go")
//	}
package rig

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// DefaultRelease is the release of ttnn that tests use unless they are about another one.
const DefaultRelease = "0.81.1"

// JAXRelease is a release of JAX's plugin, with which JAXProgram runs.
const JAXRelease = "jax-0.1.3"

// Scripts that come with the rig; Options.Script takes the path of any other.
const (
	Workload = "workload.py" // a random one that stops at rest points
	Loop     = "loop.py"     // a steady one that repeats itself
	Programs = "programs.py" // many operations, one after the other
	// MeshPrograms runs programs that differ from chip to chip.
	MeshPrograms = "mesh_programs.py"
	// Outlived runs programs that outlive the mesh that they ran on.
	Outlived = "outlived.py"
	Traces   = "traces.py" // one that captures a trace and enters its replay
	// FreedAtOnce frees all buffers of a device in one call, and then the tensors that refer to them.
	FreedAtOnce = "freed_at_once.py"
	Forked      = "forked.py"    // workers that are forked, and open devices of their own
	Submesh     = "submesh.py"   // one that closes a mesh whose submesh is referenced
	Regions     = "regions.py"   // one that fills regions of given sizes
	Alternate   = "alternate.py" // one that allocates other buffers at the same addresses
	PerCore     = "per_core.py"  // one with L1 tensors that have an address on each of their cores
	Pipes       = "pipes.py"     // one with a space for prefetcher pipes
	Resized     = "resized.py"   // one that takes L1 from the banks, as a sub-device manager does
	// JAXProgram is JAX with an array on each device; its runtime has no symbols.
	JAXProgram = "jax_program.py"
	// Openings opens all chips again and again, with the fabric and without it.
	Openings = "openings.py"
	Ways     = "ways.py"  // the ways in which people open devices and hold memory
	Lives    = "lives.py" // random lives of devices
)

// Clusters are the names that Options.Cluster takes.
var Clusters = []string{"n150", "n300", "t3k", "galaxy", "p150"}

// MemoryTypes are the keys of Device.Views, Device.Asked and Message.Asked.
var MemoryTypes = []string{"DRAM", "L1", "L1_SMALL", "TRACE"}

// ErrUnavailable says that this machine lacks something the rig needs. Tests skip on it.
var ErrUnavailable = errors.New("the rig is not available here")

// unavailable is rig.py's exit code for it.
const unavailable = 77

// Runtime is an installed release of ttnn.
type Runtime struct {
	Release string `json:"release"`
	Python  string `json:"python"`  // the interpreter that can import this release
	Library string `json:"library"` // the file that holds the runtime, libtt_metal.so from 0.62.0 on
	// SitePackages is the folder with the package ttnn in it.
	SitePackages string `json:"site_packages"`
}

// Install makes sure that a release is there; the first time this takes a while and prints its progress to
// stderr.
func Install(ctx context.Context, release string) (*Runtime, error) {
	installed := &Runtime{}
	if err := rigScript(ctx, installed, "install", "--json", "--release", release); err != nil {
		return nil, err
	}
	return installed, nil
}

// Python is the path of an interpreter of a version that the runtime is published for: 3.10 or 3.12.
func Python(ctx context.Context, version string) (path string, err error) {
	return path, rigScript(ctx, &path, "python", version)
}

// Library is the path of the file that holds the runtime of a release that is already installed.
func Library(release string) (string, error) {
	installed, err := Install(context.Background(), release)
	if err != nil {
		return "", err
	}
	return installed.Library, nil
}

// Dir is the folder of the rig's scripts.
func Dir() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok {
		if dir := filepath.Dir(file); exists(filepath.Join(dir, "rig.py")) {
			return dir, nil
		}
	}
	// A build with -trimpath does not know where its source is; a test still runs inside the tree.
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if rig := filepath.Join(dir, "test", "rig"); exists(filepath.Join(rig, "rig.py")) {
			return rig, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the folder test/rig is not here")
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// rigScript runs rig.py and decodes what it prints.
func rigScript(ctx context.Context, result any, args ...string) error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return fmt.Errorf("%w: no python3", ErrUnavailable)
	}
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.Join(dir, "rig.py")}, args...)...)
	last := &tail{limit: 4 << 10}
	cmd.Stderr = io.MultiWriter(os.Stderr, last)
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == unavailable:
		return fmt.Errorf("%w: %s", ErrUnavailable, strings.TrimPrefix(last.lastLine(), "rig: "))
	case err != nil:
		return fmt.Errorf("rig.py %s: %w: %s", args[0], err, last)
	}
	if err := json.Unmarshal(out, result); err != nil {
		return fmt.Errorf("rig.py %s: %w", args[0], err)
	}
	return nil
}

// Options say what to run, and on what.
type Options struct {
	Cluster string   // one of Clusters
	Script  string   // Workload, Loop or another of the rig's, the path of a Python script (*.py), or a program
	Args    []string // the rig's own scripts get --cluster in front of them
	Env     []string // in addition to this process's and the rig's
	// SlowDispatch launches programs without the on-device dispatcher. More operations work on the mock then.
	// Releases that run in no other way have it by themselves.
	SlowDispatch bool
	// RealKernels compiles kernels with the real compiler, which is downloaded once. The first run of each takes a while.
	RealKernels bool
	// Simulator is the folder of a simulator, whose chips are used in place of a cluster's, with real kernels. Such runs
	// share the chips' ids.
	Simulator string
	// FirstChipID gives the chips unique ids from here on. With 0 a run has its own; runs on the same chips
	// need the same one.
	FirstChipID uint64
	Root        string    // the folder that is all there is for it, by chroot
	Verbose     bool      // let the runtime log
	Stderr      io.Writer // gets what the workload and the runtime print, in addition to error messages
}

// Prepared is everything that it takes to run something on a mock cluster, for callers that start it
// themselves.
type Prepared struct {
	Argv []string
	Env  []string          // a whole environment, not an addition to one
	Dir  string            // temporary, the runtime logs there
	Chip map[uint32]uint64 // chip id -> unique id

	files []string
	once  sync.Once
}

type environment struct {
	Python string            `json:"python"`
	Dir    string            `json:"dir"`
	Chips  map[uint32]uint64 `json:"chips"`
	Env    map[string]string `json:"env"`
	Files  []string          `json:"files"`
}

// SlowOnly: on mock chips, this release runs without the on-device dispatcher only, and then it places no
// circular buffers.
func (r *Runtime) SlowOnly() bool { return r.Release >= "0.67" && r.Release < "0.75" }

// ReadsKernels: on mock chips, this release compiles and reads the kernels of programs; with slow dispatch
// it places what they have in L1 as well.
func (r *Runtime) ReadsKernels() bool { return r.Release >= "0.70" }
func (r *Runtime) PlacesSlowly() bool { return r.Release >= "0.75" }

// PlacesByChip says whether a program keeps on which chips it is placed.
func (r *Runtime) PlacesByChip() bool { return r.Release >= "0.70" }

// SharesMemory: this release keeps totals of its memory in /dev/shm.
func (r *Runtime) SharesMemory() bool { return r.Release >= "0.70" }

// OneLauncher: this release dies, by a fault of its own, when two threads launch programs at a time
// (unordered_map::at, or program_binary_status_ is not Committed), so Workload has one.
func (r *Runtime) OneLauncher() bool { return r.Release >= "0.72" && r.Release < "0.80" }

// CompilesFabric: on mock chips, this release makes the kernels of the fabric.
func (r *Runtime) CompilesFabric() bool { return r.Release >= "0.81" }

// TracksUnsafe: this release can list the buffers that it takes for unsafe under a trace.
func (r *Runtime) TracksUnsafe() bool { return r.Release >= "0.79" }

// MarksCorruptible: a program can say of buffers that a trace may overwrite them.
func (r *Runtime) MarksCorruptible() bool { return r.Release >= "0.81" }

// Compared is what can be compared end to end on this release.
func (r *Runtime) Compared() string {
	what := "buffers and programs"
	if r.SlowOnly() {
		what = "buffers, with slow dispatch"
	}
	if r.OneLauncher() {
		what += ", one thread launching"
	}
	return what
}

// Prepare sets a run up without starting it. The caller closes it after the run.
func (r *Runtime) Prepare(ctx context.Context, o Options) (*Prepared, error) {
	args := []string{"env", "--release", r.Release, "--owner", strconv.Itoa(os.Getpid())}
	if o.Simulator != "" {
		o.Cluster = "simulator"
		args = append(args, "--simulator", o.Simulator)
	} else {
		args = append(args, "--cluster", o.Cluster)
	}
	if o.RealKernels {
		args = append(args, "--real-kernels")
	}
	if o.SlowDispatch || r.SlowOnly() {
		args = append(args, "--slow-dispatch")
	}
	if o.FirstChipID != 0 {
		args = append(args, "--first-chip-id", strconv.FormatUint(o.FirstChipID, 10))
	}
	if o.Verbose {
		args = append(args, "--verbose")
	}
	var e environment
	if err := rigScript(ctx, &e, args...); err != nil {
		return nil, err
	}
	p := &Prepared{Env: os.Environ(), Dir: e.Dir, Chip: e.Chips, files: e.Files}
	for name, value := range e.Env {
		p.Env = append(p.Env, name+"="+value)
	}
	p.Env = append(p.Env, o.Env...)

	switch {
	case strings.HasSuffix(o.Script, ".py") && filepath.Base(o.Script) == o.Script:
		dir, err := Dir()
		if err != nil {
			p.Close()
			return nil, err
		}
		p.Argv = append([]string{e.Python, filepath.Join(dir, o.Script), "--cluster", o.Cluster}, o.Args...)
		if o.Script == Workload && r.OneLauncher() {
			p.Argv = append(p.Argv, "--threads", "1")
		}
	case strings.HasSuffix(o.Script, ".py"):
		p.Argv = append([]string{e.Python, o.Script}, o.Args...)
	default:
		p.Argv = append([]string{o.Script}, o.Args...)
	}
	return p, nil
}

// Command is Prepare for the simple case: a command line and environment to hand to another program.
// done removes what the run leaves.
func (r *Runtime) Command(cluster, script string, args ...string) (argv, env []string, done func(), err error) {
	p, err := r.Prepare(context.Background(), Options{Cluster: cluster, Script: script, Args: args})
	if err != nil {
		return nil, nil, nil, err
	}
	return p.Argv, p.Env, p.Close, nil
}

// SharedMemory is the path of the runtime's own account of a chip, by the chip's id.
func (p *Prepared) SharedMemory(chip uint32) string {
	return fmt.Sprintf("/dev/shm/tt_device_%d_memory", p.Chip[chip])
}

// Close removes what the run has left: its temporary folder and the runtime's files in /dev/shm, which the
// runtime never removes itself.
func (p *Prepared) Close() {
	p.once.Do(func() {
		for _, path := range p.files {
			os.RemoveAll(path)
		}
	})
}

// Run is a workload that is running.
type Run struct {
	*Prepared
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	stderr   *tail
	messages queue
	exited   chan struct{} // closed after err is set
	err      error
	close    sync.Once
}

// Start starts a workload. It ends when ctx does, at the latest when Close is called.
func (r *Runtime) Start(ctx context.Context, o Options) (*Run, error) {
	prepared, err := r.Prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	w := &Run{
		Prepared: prepared,
		cmd:      exec.CommandContext(ctx, prepared.Argv[0], prepared.Argv[1:]...),
		stderr:   &tail{limit: 16 << 10},
		messages: queue{added: make(chan struct{}, 1)},
		exited:   make(chan struct{}),
	}
	w.cmd.Env = prepared.Env
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: o.Root}
	w.cmd.Stderr = w.stderr
	if o.Stderr != nil {
		w.cmd.Stderr = io.MultiWriter(w.stderr, o.Stderr)
	}
	// Compilers that the runtime starts may outlive it for a moment, and hold its stderr.
	w.cmd.WaitDelay = 10 * time.Second
	stdout, err := w.cmd.StdoutPipe()
	if err == nil {
		w.stdin, err = w.cmd.StdinPipe()
	}
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		prepared.Close()
		return nil, err
	}
	go w.read(stdout)
	return w, nil
}

// read turns lines into messages to the end of stdout, and only then waits: Wait closes the pipe.
func (w *Run) read(stdout io.Reader) {
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			w.deliver(line)
		}
		if err != nil {
			break
		}
	}
	w.err = w.cmd.Wait()
	close(w.exited)
}

func (w *Run) deliver(line []byte) {
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		// Programs other than the rig's scripts may print what they like.
		m = Message{Event: EventText}
	}
	m.Text = string(bytes.TrimRight(line, "\n"))
	w.messages.put(m)
}

// queue holds messages until they are asked for, however many: a workload must not come to a halt because
// its test looks elsewhere.
type queue struct {
	mu       sync.Mutex
	messages []Message
	added    chan struct{} // holds at most one wake-up
}

func (q *queue) put(m Message) {
	q.mu.Lock()
	q.messages = append(q.messages, m)
	q.mu.Unlock()
	select {
	case q.added <- struct{}{}:
	default:
	}
}

func (q *queue) take() (Message, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.messages) == 0 {
		return Message{}, false
	}
	m := q.messages[0]
	q.messages = q.messages[1:]
	return m, true
}

// PID is the workload's process id.
func (w *Run) PID() int { return w.cmd.Process.Pid }

// Stderr is the end of what the workload and the runtime have printed.
func (w *Run) Stderr() string { return w.stderr.String() }

// Next is the workload's next message. After the last one it returns io.EOF, or an error that wraps
// *exec.ExitError when the workload failed.
func (w *Run) Next(timeout time.Duration) (Message, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		if m, ok := w.messages.take(); ok {
			return m, nil
		}
		select {
		case <-w.messages.added:
		case <-w.exited:
			// The last messages came before.
			if m, ok := w.messages.take(); ok {
				return m, nil
			}
			if w.err != nil {
				return Message{}, fmt.Errorf("the workload ended: %w: %s", w.err, w.stderr)
			}
			return Message{}, io.EOF
		case <-timer.C:
			return Message{}, fmt.Errorf("no message from the workload within %s: %s", timeout, w.stderr)
		}
	}
}

// Await skips messages until one of the given event. The workload's own report of an error is an error.
func (w *Run) Await(event string, timeout time.Duration) (Message, error) {
	deadline := time.Now().Add(timeout)
	for {
		m, err := w.Next(time.Until(deadline))
		if err != nil {
			return m, fmt.Errorf("waiting for %q: %w", event, err)
		}
		if m.Event == event {
			return m, nil
		}
		if m.Event == EventError {
			return m, fmt.Errorf("waiting for %q: the workload failed: %s", event, m.Error)
		}
	}
}

// Rest is the workload's next rest point. It waits there for a command.
func (w *Run) Rest(timeout time.Duration) (Message, error) { return w.Await(EventRest, timeout) }

// Send gives a command to a workload that waits: go, gc, rest, oom, close or quit.
func (w *Run) Send(command string) error {
	_, err := io.WriteString(w.stdin, command+"\n")
	return err
}

// Wait drops further messages and waits for the workload to end by itself.
func (w *Run) Wait(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		m, err := w.Next(time.Until(deadline))
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case m.Event == EventError:
			return fmt.Errorf("the workload failed: %s", m.Error)
		}
	}
}

// Close ends the workload, if it still runs, and removes what it leaves.
func (w *Run) Close() {
	w.close.Do(func() {
		w.stdin.Close()
		w.cmd.Process.Kill() // does nothing to a process that has been waited for, even if its id is in use again
		<-w.exited
		w.Prepared.Close()
	})
}

// Events of messages.
const (
	EventStart  = "start"  // PID
	EventOpen   = "open"   // PID of who opened them, Chips, Meshes, OpsOn
	EventRest   = "rest"   // N, Steps, Last, Devices, Asked, Counts; the workload waits for a command
	EventOOM    = "oom"    // Error; the workload waits for a command
	EventClosed = "closed" // the devices are closed; the workload waits for one more line, then ends
	EventError  = "error"  // Error; the workload ends
	EventRound  = "round"  // Loop: N, Steps, Checksum
	EventDone   = "done"   // Loop: N (rounds), Steps, Checksum, Same
	EventText   = "text"   // a line that is no message
	EventWays   = "ways"   // Ways: Text has the list
	EventWay    = "way"    // Ways: Way begins
	EventAbsent = "absent" // Ways: the release lacks Way, and Why
)

// Message is one line of a workload. Event says which of the fields are set.
type Message struct {
	Event string `json:"event"`
	Text  string `json:"-"` // the line itself

	PID    int           `json:"pid"`
	Chips  []uint32      `json:"chips"`
	Meshes []MeshMembers `json:"meshes"`
	// OpsOn is where operations run: main, submeshes or both.
	OpsOn string `json:"ops_on"`

	// Way is the name of a way, and What a rest point in it.
	Way  string `json:"way"`
	What string `json:"what"`
	Why  string `json:"why"`

	N       int      `json:"n"`
	Steps   int      `json:"steps"` // so far
	Last    bool     `json:"last"`  // nothing is held any more
	Devices []Device `json:"devices"`
	// Asked is the bytes that the workload has asked for and still holds, by chip and memory type: the sum
	// of Device.Asked over the devices that span the chip.
	Asked map[uint32]map[string]uint64 `json:"asked"`
	// Counts of steps by what they did: allocations, frees, operations.
	Counts map[string]uint64 `json:"counts"`

	// L1 is what workloads say that are about it: by chip.
	L1 []L1 `json:"l1"`

	Error    string `json:"error"`
	Checksum string `json:"checksum"`
	Same     bool   `json:"same"`
}

// L1 is the L1 of a chip, in bytes: of each bank, and what is taken of all of them together.
type L1 struct {
	Chip      uint32     `json:"chip"`
	BankBytes uint64     `json:"bank_bytes"`
	Reserved  uint64     `json:"reserved"`
	Asked     uint64     `json:"asked"`
	Tensors   []L1Tensor `json:"tensors"`
	// Persistent is the end of what is taken outside of the allocator, 0 for nothing.
	Persistent uint64 `json:"persistent"`
}

// L1Tensor is a tensor that has an address on each of its cores: Cores are x, y and the address.
type L1Tensor struct {
	Asked uint64      `json:"asked"`
	Cores [][3]uint64 `json:"cores"`
}

// MeshMembers says which chips a mesh spans.
type MeshMembers struct {
	Mesh  string   `json:"mesh"`
	Chips []uint32 `json:"chips"`
}

// Device is one mesh device at a rest point. A submesh has an allocator of its own, independent of its
// parent's: what it holds is in its own entry only, at addresses that may overlap with others on the chip.
type Device struct {
	Mesh  string   `json:"mesh"` // main, submesh0, ...
	ID    int      `json:"id"`   // counts mesh devices of the process, is no chip id
	Chips []uint32 `json:"chips"`
	// Buffers are all that the allocator holds. Each takes the same space on every one of Chips.
	Buffers []Buffer `json:"buffers"`
	// Asked is the bytes per chip that the workload asked for, by memory type, worked out from the shapes and
	// types of what it holds.
	Asked map[string]uint64 `json:"asked"`
	// Others is how many of Buffers the workload does not know: operations made and keep them. Asked does not
	// include them.
	Others   int             `json:"others"`
	Views    map[string]View `json:"views"`    // by memory type
	Programs int             `json:"programs"` // in the program cache
}

// Buffer is one allocated buffer.
type Buffer struct {
	Type    string `json:"type"`
	Address uint64 `json:"address"`
	// BytesPerBank is what the runtime reports: the size in the fullest bank, without the rounding of pages.
	BytesPerBank uint64 `json:"bytes_per_bank"`
	// ReservedPerBank is the allocator's block, which is what every bank loses. 0 where the release does not
	// say (0.72; 0.66 and 0.77 to 0.81.1 do): then only View.AllocatedPerBank has the sum.
	ReservedPerBank uint64  `json:"reserved_per_bank"`
	Asked           *uint64 `json:"asked"` // bytes per chip; nil when the workload does not know the buffer
	Kind            string  `json:"kind"`  // for messages
}

// View is the allocator's account of one kind of memory on one chip of a device.
type View struct {
	NumBanks           uint64 `json:"num_banks"`
	TotalBytesPerBank  uint64 `json:"total_bytes_per_bank"`
	AllocatedPerBank   uint64 `json:"allocated_per_bank"`
	LargestFreePerBank uint64 `json:"largest_free_per_bank"`
	// Base is the address where each bank begins; nil while it holds no buffer, or where the release does not say.
	Base *uint64 `json:"base"`
}

// Reserved is the bytes that a chip's banks have lost.
func (v View) Reserved() uint64 { return v.AllocatedPerBank * v.NumBanks }

// Capacity is the bytes in all banks of a chip.
func (v View) Capacity() uint64 { return v.TotalBytesPerBank * v.NumBanks }

// Reserved is the bytes that a chip's banks have lost to all devices that span it, by memory type.
func (m *Message) Reserved(chip uint32) map[string]uint64 {
	sums := map[string]uint64{}
	for _, d := range m.Devices {
		for _, c := range d.Chips {
			if c == chip {
				for memory, view := range d.Views {
					sums[memory] += view.Reserved()
				}
			}
		}
	}
	return sums
}

// tail keeps the end of what is written to it.
type tail struct {
	mu    sync.Mutex
	limit int
	text  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - t.limit; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

func (t *tail) lastLine() string {
	text := t.String()
	return text[strings.LastIndexByte(text, '\n')+1:]
}
