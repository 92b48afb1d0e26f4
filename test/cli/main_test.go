// Package cli tests the binary as its users meet it: command lines, rights,
// output, signals and exit codes, with the real runtime on mock chips.
package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/fixture"
	"tt-memtrace/test/program"
	"tt-memtrace/test/rig"
)

// patience bounds every wait; it is not expected to be reached.
const patience = 2 * time.Minute

// The exit codes, as --help has them.
const (
	fine         = 0
	failed       = 1
	wrongUsage   = 2
	notPermitted = 3
	notSupported = 4
	incomplete   = 5
)

// tool is the binary under test.
var tool string

func TestMain(m *testing.M) {
	remove := fixture.Share()
	dir, err := journals()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := program.Main(m, &tool)
	os.RemoveAll(dir)
	remove()
	os.Exit(code)
}

// journals makes the folder for what forwarders leave behind, as anyone.
func journals() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "tt-memtrace-journals-"); err != nil {
		return "", err
	}
	return dir, errors.Join(os.Chmod(dir, 0o777), os.Setenv("RUNTIME_DIRECTORY", dir))
}

// text is what a program writes, as it comes.
type text struct {
	mu    sync.Mutex
	bytes []byte
	more  chan struct{} // closed and replaced with every write
}

func newText() *text { return &text{more: make(chan struct{})} }

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.bytes = append(x.bytes, p...)
	close(x.more)
	x.more = make(chan struct{})
	return len(p), nil
}

func (x *text) state() (string, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return string(x.bytes), x.more
}

func (x *text) String() string {
	s, _ := x.state()
	return s
}

// within says whether the text became what done wants within the time.
func (x *text) within(limit time.Duration, done func(string) bool) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s, more := x.state()
		if done(s) {
			return true
		}
		select {
		case <-more:
		case <-timer.C:
			return false
		}
	}
}

// await waits until the text contains what is wanted.
func (x *text) await(t *testing.T, wanted string) {
	t.Helper()
	if !x.within(patience, func(s string) bool { return strings.Contains(s, wanted) }) {
		t.Fatalf("no %q in:\n%s", wanted, x)
	}
}

// lines of the text that are whole.
func lines(s string) []string {
	var list []string
	for line := range strings.Lines(s) {
		if whole, ok := strings.CutSuffix(line, "\n"); ok {
			list = append(list, whole)
		}
	}
	return list
}

// call is how to start the tool.
type call struct {
	program string // another one than tool
	args    []string
	env     []string // a whole environment; nil for this process's
	stdin   io.Reader
	stdout  *os.File // instead of session.out
	nobody  bool     // run it as a user without any rights
	root    string   // the folder that is all there is for it
	tty     *os.File // the terminal, for stdin, stdout and stderr
}

// session is a tool that runs, in a process group of its own.
type session struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err *text
	exited   chan struct{}
}

func begin(t *testing.T, c call) *session {
	t.Helper()
	if c.program == "" {
		c.program = tool
	}
	s := &session{t: t, cmd: exec.Command(c.program, c.args...), out: newText(), err: newText(), exited: make(chan struct{})}
	s.cmd.Env, s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = c.env, c.stdin, s.out, s.err
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.stdout != nil {
		s.cmd.Stdout = c.stdout
	}
	if c.tty != nil {
		s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = c.tty, c.tty, c.tty
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	if c.nobody {
		s.cmd.SysProcAttr.Credential = nobody(t)
		s.cmd.Dir = "/"
	}
	s.cmd.SysProcAttr.Chroot = c.root
	// What it started may outlive it and hold its output.
	s.cmd.WaitDelay = patience
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(s.kill)
	return s
}

// kill ends it and what it started, unless it has ended by itself.
func (s *session) kill() {
	select {
	case <-s.exited:
		return
	default:
	}
	unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
	<-s.exited
}

func (s *session) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// result is what has become of a call.
type result struct {
	code     int // -1 where a signal ended it
	signal   syscall.Signal
	out, err string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d, signal %d\nstdout: %s\nstderr: %s", r.code, r.signal, r.out, r.err)
}

// end waits for the session's end, which should be near.
func (s *session) end() result {
	s.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.exited:
	case <-timer.C:
		s.t.Fatalf("%v still runs\nstdout: %s\nstderr: %s", s.cmd.Args, s.out, s.err)
	}
	r := result{code: s.cmd.ProcessState.ExitCode(), out: s.out.String(), err: s.err.String()}
	if w := s.cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
		r.signal = w.Signal()
	}
	if strings.Contains(r.err, "panic:") || strings.Contains(r.err, "goroutine ") {
		s.t.Errorf("it crashed:\n%s", r.err)
	}
	return r
}

// ends is end, with an exit code that it may have.
func (s *session) ends(codes ...int) result {
	s.t.Helper()
	r := s.end()
	if !slices.Contains(codes, r.code) {
		s.t.Fatalf("%v: exit code %d is wanted, this is %v", s.cmd.Args, codes, r)
	}
	return r
}

// endsAmidOthers is ends of a command that goes well and looks at the whole host: processes that others started may hang, or end
// before they are read.
func (s *session) endsAmidOthers() result {
	s.t.Helper()
	return s.ends(fine, incomplete)
}

// run runs the tool to its end, which has to have this exit code.
func run(t *testing.T, code int, args ...string) result {
	t.Helper()
	return begin(t, call{args: args}).ends(code)
}

// contains fails unless the text has all of the parts.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in:\n%s", p, text)
		}
	}
}

// mayTrace skips where tracing is not possible.
func mayTrace(t *testing.T) {
	t.Helper()
	if r := tracingWorks(); r != nil {
		t.Skip(r)
	}
}

var tracingWorks = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("tracing takes root")
	}
	out, err := exec.Command(tool, "doctor").CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == notPermitted {
		return fmt.Errorf("tracing is not permitted to root here:\n%s", out)
	}
	return nil
})

// runtime is the default release of the real runtime.
func runtime(t *testing.T) *rig.Runtime {
	t.Helper()
	mayTrace(t)
	return installed(t, rig.DefaultRelease)
}

// installed returns an installed release.
func installed(t *testing.T, release string) *rig.Runtime {
	t.Helper()
	r, err := rig.Install(t.Context(), release)
	if errors.Is(err, rig.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// target starts a program that uses the runtime.
func target(t *testing.T, o rig.Options) *rig.Run {
	t.Helper()
	w, err := runtime(t).Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// prepared is a program for the tool to start.
func prepared(t *testing.T, o rig.Options) *rig.Prepared {
	t.Helper()
	p, err := runtime(t).Prepare(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// beside is a command line that runs argv with its output beside the tool's, on stderr.
func beside(argv []string) []string {
	return append([]string{"sh", "-c", `exec "$@" >&2`, "sh"}, argv...)
}

func await(t *testing.T, w *rig.Run, event string) rig.Message {
	t.Helper()
	m, err := w.Await(event, patience)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func send(t *testing.T, w *rig.Run, command string) {
	t.Helper()
	if err := w.Send(command); err != nil {
		t.Fatal(err)
	}
}

// holder is testdata/hold.py: it holds a MiB, a step for each line it is sent.
func holder(t *testing.T) *rig.Run {
	t.Helper()
	script, err := filepath.Abs("testdata/hold.py")
	if err != nil {
		t.Fatal(err)
	}
	w := target(t, rig.Options{Cluster: "n150", Script: script})
	says(t, w, "started")
	return w
}

// gated starts workload.py once it is sent a line; until then it is a shell.
func gated(t *testing.T, cluster string, args ...string) *rig.Run {
	t.Helper()
	dir, err := rig.Dir()
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{"-c", `read line; exec "$@"`, "sh", runtime(t).Python, filepath.Join(dir, rig.Workload), "--cluster", cluster}
	return target(t, rig.Options{Cluster: cluster, Script: "sh", Args: append(argv, args...)})
}

// says waits for a line of a program that is none of the rig's own.
func says(t *testing.T, w *rig.Run, line string) {
	t.Helper()
	for {
		m, err := w.Next(patience)
		if err != nil {
			t.Fatalf("waiting for %q: %v", line, err)
		}
		if m.Text == line {
			return
		}
	}
}

// steady starts loop.py, which goes on for longer than any test, and waits for its first round.
func steady(t *testing.T, cluster string, args ...string) *rig.Run {
	t.Helper()
	w := target(t, rig.Options{Cluster: cluster, Script: rig.Loop, Args: append([]string{"--seconds", "600"}, args...)})
	await(t, w, rig.EventRound)
	return w
}

// goesOn checks that a steady program has come to no harm, and ends it.
func goesOn(t *testing.T, w *rig.Run) {
	t.Helper()
	await(t, w, rig.EventRound)
	if err := unix.Kill(w.PID(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if m := await(t, w, rig.EventDone); !m.Same {
		t.Errorf("its rounds differ: %+v", m)
	}
	if err := w.Wait(patience); err != nil {
		t.Error(err)
	}
}

// eventually polls for what has no event.
func eventually(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// terminal is a new pseudo-terminal: what is written to keys is typed, what
// programs write to tty is in screen.
func terminal(t *testing.T) (keys io.Writer, screen *text, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120})
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		t.Fatal(err)
	}
	screen = newText()
	drained := make(chan struct{})
	go func() {
		io.Copy(screen, master) // ends when nobody has the terminal open any more
		close(drained)
	}()
	t.Cleanup(func() {
		tty.Close()
		<-drained
		master.Close()
		if t.Failed() {
			t.Logf("the terminal showed:\n%s", screen)
		}
	})
	return master, screen, tty
}

// environ is this process's environment with some variables set or, where
// there is no =, unset.
func environ(changes ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		keep := true
		for _, c := range changes {
			changed, _, _ := strings.Cut(c, "=")
			keep = keep && changed != name
		}
		if keep {
			env = append(env, v)
		}
	}
	for _, c := range changes {
		if strings.Contains(c, "=") {
			env = append(env, c)
		}
	}
	return env
}

// copyFile copies a program to where every user can run it.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func trimmed(b []byte) string { return string(bytes.TrimSpace(b)) }
