package rig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 2 * time.Minute

func installed(t *testing.T) *Runtime {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the real runtime")
	}
	r, err := Install(t.Context(), DefaultRelease)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func start(t *testing.T, r *Runtime, o Options) *Run {
	t.Helper()
	w, err := r.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func send(t *testing.T, w *Run, command string) {
	t.Helper()
	if err := w.Send(command); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, w *Run, event string) Message {
	t.Helper()
	m, err := w.Await(event, patience)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// finish lets a workload end after it has closed its devices.
func finish(t *testing.T, w *Run) {
	t.Helper()
	await(t, w, EventClosed)
	send(t, w, "go")
	if err := w.Wait(patience); err != nil {
		t.Fatal(err)
	}
	cleanedUp(t, w)
}

// cleanedUp closes a run and checks that none of its files is still there.
func cleanedUp(t *testing.T, w *Run) {
	t.Helper()
	w.Close()
	for _, path := range w.files {
		if exists(path) {
			t.Errorf("%s is left behind", path)
		}
	}
}

// sharedMemory is what a process maps of /dev/shm.
func sharedMemory(t *testing.T, pid int) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if at := strings.Index(line, "/dev/shm/"); at >= 0 {
			files[strings.TrimSpace(line[at:])] = true
		}
	}
	return slices.Sorted(maps.Keys(files))
}

func TestWorkload(t *testing.T) {
	r := installed(t)
	for _, cluster := range []string{"n150", "t3k"} {
		for _, threads := range []string{"0", "2"} {
			t.Run(cluster+"/threads "+threads, func(t *testing.T) {
				t.Parallel()
				testWorkload(t, r, cluster, threads)
			})
		}
	}
}

func testWorkload(t *testing.T, r *Runtime, cluster, threads string) {
	w := start(t, r, Options{
		Cluster: cluster, Script: Workload,
		Args: []string{"--steps", "30", "--rest-every", "10", "--threads", threads, "--close-submeshes", "empty"},
	})
	m, err := w.Next(patience)
	if err != nil || m.Event != EventStart || m.PID != w.PID() {
		t.Fatalf("the first message is %+v, %v", m, err)
	}
	open := await(t, w, EventOpen)
	if len(open.Chips) != len(w.Chip) {
		t.Errorf("chips %v are open, the cluster has %v", open.Chips, w.Chip)
	}
	held := 0
	for n := 0; !m.Last; n++ {
		if m, err = w.Rest(patience); err != nil {
			t.Fatal(err)
		}
		if m.N != n {
			t.Errorf("rest point %d is number %d", n, m.N)
		}
		held += check(t, &m)
		if threads == "0" {
			for chip := range w.Chip {
				checkSharedMemory(t, w.SharedMemory(chip), m.Asked[chip])
			}
		}
		for _, path := range sharedMemory(t, w.PID()) {
			if !slices.Contains(w.files, path) {
				t.Errorf("the workload uses %s, which nobody will remove", path)
			}
		}
		send(t, w, "go")
	}
	if held == 0 {
		t.Error("no rest point held anything")
	}
	finish(t, w)
}

// check holds the parts of a report against each other and counts its buffers.
func check(t *testing.T, m *Message) int {
	t.Helper()
	held := 0
	asked := map[uint32]map[string]uint64{}
	for _, d := range m.Devices {
		held += len(d.Buffers)
		reserved, sum := map[string]uint64{}, map[string]uint64{}
		for _, b := range d.Buffers {
			reserved[b.Type] += b.ReservedPerBank
			if b.BytesPerBank > b.ReservedPerBank {
				t.Errorf("%s: %+v is larger than its block", d.Mesh, b)
			}
			if b.Asked == nil {
				t.Errorf("%s: the workload does not know %+v", d.Mesh, b)
				continue
			}
			sum[b.Type] += *b.Asked
			if *b.Asked > b.ReservedPerBank*d.Views[b.Type].NumBanks {
				t.Errorf("%s: %+v asks for more than the allocator took", d.Mesh, b)
			}
		}
		for _, memory := range MemoryTypes {
			view := d.Views[memory]
			if view.AllocatedPerBank != reserved[memory] {
				t.Errorf("%s: %d bytes of %s per bank are allocated, blocks add up to %d",
					d.Mesh, view.AllocatedPerBank, memory, reserved[memory])
			}
			if view.Capacity() == 0 {
				t.Errorf("%s has no %s", d.Mesh, memory)
			}
			if d.Asked[memory] != sum[memory] {
				t.Errorf("%s: asked for %d bytes of %s, buffers add up to %d", d.Mesh, d.Asked[memory], memory, sum[memory])
			}
			for _, chip := range d.Chips {
				if asked[chip] == nil {
					asked[chip] = map[string]uint64{}
				}
				asked[chip][memory] += sum[memory]
			}
		}
	}
	for chip, want := range asked {
		if !maps.Equal(m.Asked[chip], want) {
			t.Errorf("chip %d: asked for %v, devices add up to %v", chip, m.Asked[chip], want)
		}
		for memory, reserved := range m.Reserved(chip) {
			if reserved < want[memory] {
				t.Errorf("chip %d: %d bytes of %s are reserved for %d", chip, reserved, memory, want[memory])
			}
		}
	}
	if m.Last && held != 0 {
		t.Errorf("%d buffers are held at the end", held)
	}
	return held
}

// checkSharedMemory compares what the workload asked for with the runtime's own account. This misses what
// threads other than the first allocate, so this is for workloads with --threads 0.
func checkSharedMemory(t *testing.T, path string, asked map[string]uint64) {
	t.Helper()
	account, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	if version := binary.LittleEndian.Uint32(account); version != 3 {
		t.Fatalf("%s has version %d", path, version)
	}
	for memory, offset := range map[string]int{"DRAM": 48, "L1": 56, "L1_SMALL": 64, "TRACE": 72} {
		if got := binary.LittleEndian.Uint64(account[offset:]); got != asked[memory] {
			t.Errorf("%s says %d bytes of %s, the workload asked for %d", path, got, memory, asked[memory])
		}
	}
}

// cue starts a workload and lets it come to its first rest point.
func cue(t *testing.T, r *Runtime, cluster string, args ...string) (*Run, Message) {
	t.Helper()
	w := start(t, r, Options{Cluster: cluster, Script: Workload, Args: args})
	return w, await(t, w, EventRest)
}

func TestCommands(t *testing.T) {
	t.Parallel()
	w, m := cue(t, installed(t), "n150")
	check(t, &m)
	send(t, w, "oom")
	if m := await(t, w, EventOOM); !strings.HasPrefix(m.Error, "Out of Memory: Not enough space to allocate") {
		t.Errorf("out of memory says %q", m.Error)
	}
	for _, command := range []string{"gc", "rest"} {
		send(t, w, command)
		again := await(t, w, EventRest)
		if again.N != m.N || !maps.Equal(again.Asked[0], m.Asked[0]) {
			t.Errorf("after %q the report differs: %v, then %v", command, m.Asked, again.Asked)
		}
	}
	send(t, w, "close")
	finish(t, w)
}

func TestQuit(t *testing.T) {
	t.Parallel()
	w, _ := cue(t, installed(t), "n150")
	send(t, w, "quit")
	if err := w.Wait(patience); err != nil {
		t.Error(err)
	}
	cleanedUp(t, w)
}

func TestCloseWithLiveTensors(t *testing.T) {
	t.Parallel()
	w, m := cue(t, installed(t), "t3k", "--steps", "25", "--close-with-live")
	if check(t, &m) == 0 {
		t.Error("nothing is held")
	}
	send(t, w, "go")
	finish(t, w)
}

func TestUnknownCommand(t *testing.T) {
	t.Parallel()
	w, _ := cue(t, installed(t), "n150")
	send(t, w, "bogus")
	if m, err := w.Rest(patience); err == nil || m.Event != EventError || !strings.Contains(err.Error(), "bogus") {
		t.Errorf("after a bogus command: %+v, %v", m, err)
	}
	var exit *exec.ExitError
	if err := w.Wait(patience); !errors.As(err, &exit) {
		t.Errorf("the workload ended with %v", err)
	}
}

// Two runs at the same time must not share chips, and closing one in its midst must not touch the other.
func TestConcurrentRuns(t *testing.T) {
	t.Parallel()
	r := installed(t)
	one, _ := cue(t, r, "n300")
	two, _ := cue(t, r, "n300")
	for chip, id := range one.Chip {
		if two.Chip[chip] == id {
			t.Errorf("both runs have chip %d with id %d", chip, id)
		}
	}
	cleanedUp(t, one)
	for _, path := range two.files {
		if !exists(path) {
			t.Errorf("%s of the other run is gone", path)
		}
	}
	send(t, two, "go")
	m := await(t, two, EventRest)
	check(t, &m)
	cleanedUp(t, two)
}

func TestSharedChips(t *testing.T) {
	t.Parallel()
	r := installed(t)
	// The runtime's account only has processes that allocate on their first thread.
	args := []string{"--threads", "0"}
	one, _ := cue(t, r, "n150", args...)
	two := start(t, r, Options{Cluster: "n150", Script: Workload, Args: args, FirstChipID: one.Chip[0]})
	await(t, two, EventRest)
	path := one.SharedMemory(0)
	if path != two.SharedMemory(0) {
		t.Fatalf("the runs have %s and %s", path, two.SharedMemory(0))
	}
	account, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pids := map[int]bool{}
	for entry := account[856:]; len(entry) >= 120; entry = entry[120:] {
		pids[int(binary.LittleEndian.Uint32(entry))] = true
	}
	if !pids[one.PID()] || !pids[two.PID()] {
		t.Errorf("%s knows the processes %v, want %d and %d", path, pids, one.PID(), two.PID())
	}
}

func TestLoop(t *testing.T) {
	t.Parallel()
	r := installed(t)
	var checksums []string
	for range 2 {
		w := start(t, r, Options{Cluster: "n300", Script: Loop, Args: []string{"--rounds", "3"}})
		m := await(t, w, EventDone)
		if m.N != 3 || !m.Same || m.Counts["allocations"] != m.Counts["frees"] || m.Counts["operations"] == 0 {
			t.Errorf("the loop ended with %+v", m)
		}
		checksums = append(checksums, m.Checksum)
		if err := w.Wait(patience); err != nil {
			t.Error(err)
		}
		cleanedUp(t, w)
	}
	if checksums[0] != checksums[1] || len(checksums[0]) != 64 {
		t.Errorf("checksums %q of two loops", checksums)
	}
}

// A loop that is asked to stop does so in order, without an unread message holding it up.
func TestStopLoop(t *testing.T) {
	t.Parallel()
	w := start(t, installed(t), Options{Cluster: "n150", Script: Loop, Args: []string{"--seconds", "600"}})
	await(t, w, EventRound)
	if err := syscall.Kill(w.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if m := await(t, w, EventDone); !m.Same {
		t.Errorf("the loop ended with %+v", m)
	}
	if err := w.Wait(patience); err != nil {
		t.Error(err)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	r := installed(t)
	argv, env, done, err := r.Command("n150", Loop, "--rounds", "1")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), `"event": "done"`) {
		t.Errorf("the command printed %s", out)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	w := start(t, installed(t), Options{Cluster: "n150", Script: "echo", Args: []string{"good day"}})
	if m, err := w.Next(patience); err != nil || m.Event != EventText || m.Text != "good day" {
		t.Errorf("got %+v, %v", m, err)
	}
	if err := w.Wait(patience); err != nil {
		t.Error(err)
	}
}

// Without its assembler the rig says so, rather than that a test failed.
func TestUnavailable(t *testing.T) {
	r := installed(t)
	t.Setenv("PATH", filepath.Dir(r.Python))
	if os.Geteuid() == 0 {
		// As root rig.py would install it, but it has no apt-get on this PATH either.
		if _, err := exec.LookPath("apt-get"); err == nil {
			t.Fatal("apt-get is beside the interpreter")
		}
	}
	_, err := Install(t.Context(), DefaultRelease)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "riscv64-unknown-elf-as") {
		t.Errorf("got %v", err)
	}
}

func TestLibrary(t *testing.T) {
	t.Parallel()
	r := installed(t)
	path, err := Library(r.Release)
	if err != nil || path != r.Library || !exists(path) {
		t.Errorf("the library is %q, %v; the runtime's is %q", path, err, r.Library)
	}
}

// What a killed owner leaves is removed by the next run; what belongs to living ones stays.
func TestSweep(t *testing.T) {
	r := installed(t)
	gone := exec.CommandContext(t.Context(), "true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	mine, err := r.Prepare(t.Context(), Options{Cluster: "n150"})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	var others environment
	args := []string{"env", "--cluster", "n300", "--owner", strconv.Itoa(gone.Process.Pid)}
	if err := rigScript(t.Context(), &others, args...); err != nil {
		t.Fatal(err)
	}
	for _, path := range append(slices.Clone(others.Files), mine.files...) {
		if !exists(path) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	next, err := r.Prepare(t.Context(), Options{Cluster: "n150"})
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	for _, path := range others.Files {
		if exists(path) {
			os.RemoveAll(path)
			t.Errorf("%s is not swept", path)
		}
	}
	for _, path := range mine.files {
		if !exists(path) {
			t.Errorf("%s is swept, but its owner lives", path)
		}
	}
}
