package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/rig"
)

// pane is the tool in a terminal of tmux's.
type pane struct {
	t      *testing.T
	socket string
	// config is its configuration folder.
	config string
}

// shown starts the tool in a terminal of a size.
func shown(t *testing.T, width, height int, args ...string) *pane {
	t.Helper()
	p := emptyPane(t)
	p.start(width, height, args...)
	return p
}

// emptyPane is a pane that nothing runs in yet.
func emptyPane(t *testing.T) *pane {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not here")
	}
	p := &pane{t: t, socket: fmt.Sprintf("tt-memtrace-test-%d-%d", os.Getpid(), time.Now().UnixNano()), config: t.TempDir()}
	t.Cleanup(p.end)
	return p
}

func (p *pane) start(width, height int, args ...string) {
	p.t.Helper()
	command := append([]string{"env", "-u", "NO_COLOR", "LC_ALL=C.UTF-8", "XDG_CONFIG_HOME=" + p.config, tool}, args...)
	argv := append([]string{"-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(width), "-y", strconv.Itoa(height)}, command...)
	if out, err := p.tmux(argv...); err != nil {
		p.t.Fatalf("tmux: %v: %s", err, out)
	}
}

// end ends the terminal, and waits for the program, which writes its settings then.
func (p *pane) end() {
	var program int
	if out, err := p.tmux("display-message", "-p", "#{pane_pid}"); err == nil {
		program, _ = strconv.Atoi(strings.TrimSpace(out))
	}
	fd, err := unix.PidfdOpen(program, 0) // fails where it has ended
	p.tmux("kill-server")
	if err != nil {
		return
	}
	defer unix.Close(fd)
	ends := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for began := time.Now(); time.Since(began) < patience; {
		if n, err := unix.Poll(ends, int(patience.Milliseconds())); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
	p.t.Error("the program goes on without its terminal")
}

func (p *pane) tmux(args ...string) (string, error) {
	out, err := exec.Command("tmux", append([]string{"-L", p.socket}, args...)...).CombinedOutput()
	return string(out), err
}

func (p *pane) press(keys ...string) {
	p.t.Helper()
	if out, err := p.tmux(append([]string{"send-keys"}, keys...)...); err != nil {
		p.t.Fatalf("tmux: %v: %s", err, out)
	}
}

// until waits for a screen that is as wanted: nil, or an error that says what is not.
func (p *pane) until(wanted func(screen string) error) string {
	p.t.Helper()
	var screen string
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if screen, err = p.tmux("capture-pane", "-p"); err == nil {
			if err = wanted(screen); err == nil {
				return screen
			}
		}
	}
	p.t.Fatalf("%v:\n%s", err, screen)
	return ""
}

// shows waits for words on the screen.
func (p *pane) shows(words ...string) string {
	p.t.Helper()
	return p.until(func(screen string) error {
		for _, w := range words {
			if !strings.Contains(screen, w) {
				return fmt.Errorf("no %q on the screen", w)
			}
		}
		return nil
	})
}

// row waits for a line with a word in it that has all of the fields.
func (p *pane) row(word string, fields ...string) {
	p.t.Helper()
	p.until(func(screen string) error {
		for l := range strings.Lines(screen) {
			has := strings.Fields(l)
			if slices.Contains(has, word) && !slices.ContainsFunc(fields, func(f string) bool { return !slices.Contains(has, f) }) {
				return nil
			}
		}
		return fmt.Errorf("no line of %s has all of %v", word, fields)
	})
}

// digits writes a number as the screen does when it is exact.
func digits(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// all is what a snapshot says of programs, beside what the recording has.
type all struct {
	Chips []struct {
		Chip     uint32
		Memory   map[string]use
		Programs struct {
			Physical uint64 `json:"physical_bytes"`
			Logical  uint64 `json:"logical_bytes"`
			Circular uint64 `json:"circular_buffers"`
			Dataflow uint64 `json:"dataflow_buffers"`
		}
		Kernels struct {
			Application uint64 `json:"application_binaries"`
		}
	}
}

// At a rest point of a real program on eight chips, the screen has the numbers of a status
// beside it, to the byte, and those are the runtime's own.
func TestScreensShowTheNumbersOfStatus(t *testing.T) {
	w := gated(t, "t3k", "--steps", "75", "--submeshes", "0", "--threads", "0")
	pid := fmt.Sprint(w.PID())
	p := shown(t, 220, 50, "-p", pid)
	beside := begin(t, call{args: []string{"status", "--json", "--every", "50ms", "-p", pid}})
	p.shows("process "+pid+" does not use the runtime yet: waiting", "1 overview")
	beside.err.await(t, "waiting")
	send(t, w, "go")
	m := await(t, w, rig.EventRest)

	var s status
	var more all
	agree := func() bool {
		list := snapshots(t, beside.out.String())
		if len(list) < 2 {
			return false
		}
		s = list[len(list)-1]
		if s.Events != list[len(list)-2].Events {
			return false // not all is in it yet
		}
		for _, c := range s.Chips {
			for memory, reserved := range m.Reserved(c.Chip) {
				if u := c.Memory[strings.ToLower(memory)]; u.Reserved == nil || *u.Reserved != reserved {
					return false
				}
			}
		}
		return len(s.Chips) == 8 && len(s.Processes) == 1
	}
	if !beside.out.within(patience, func(string) bool { return agree() }) {
		t.Fatalf("the status is %+v, the runtime's own is %+v", s, m.Reserved(0))
	}
	last := beside.out.String()
	last = last[strings.LastIndex(strings.TrimRight(last[:strings.LastIndex(last, "\n}\n")], "\n"), "\n{\n")+1:]
	if err := json.NewDecoder(strings.NewReader(last)).Decode(&more); err != nil {
		t.Fatal(err)
	}

	p.press("u") // exact
	process := s.Processes[0]
	for i, c := range more.Chips {
		var numbers []string
		for _, memory := range []string{"dram", "l1", "l1_small", "trace"} {
			numbers = append(numbers, digits(*c.Memory[memory].Reserved))
		}
		p.press("1")
		p.row(fmt.Sprint(i), append(numbers, digits(c.Programs.Physical))...)
		if i > 1 {
			continue
		}
		p.press("2")
		if i > 0 {
			p.press("]")
		}
		p.shows(fmt.Sprintf("chip %d  card", i), digits(c.Programs.Physical)+" physical", digits(c.Programs.Logical)+" logical",
			fmt.Sprintf("%d circular, %d dataflow", c.Programs.Circular, c.Programs.Dataflow), digits(c.Kernels.Application)+" application")
		for memory, name := range map[string]string{"dram": "DRAM", "l1": "L1", "l1_small": "L1_SMALL", "trace": "TRACE"} {
			u := c.Memory[memory]
			p.row(name, digits(*u.Reserved), digits(u.Requested), digits(*u.PeakReserved), digits(*u.Capacity), digits(u.Buffers))
			p.largest(name, m.Devices[0].Views[name])
		}
	}
	p.press("1")
	p.row(pid, digits(process.Buffers), digits(process.Allocs), digits(process.Frees))
	p.press("5")
	p.shows(fmt.Sprintf("buffers %s ──", digits(process.Buffers)))
	p.press("f", "L1 0x", "Enter")
	p.shows(fmt.Sprintf("buffers %s (of %s,", digits(s.Chips[0].Memory["l1"].Buffers), digits(process.Buffers)))
	p.press("7")
	p.row(pid, "yes")
	p.press("8")
	// It was traced from its start: no peak is a lower bound.
	p.until(func(screen string) error {
		if !strings.Contains(screen, "ALLOCATED BY") || !strings.Contains(screen, "buffers of ") || strings.Contains(screen, "≥") {
			return errors.New("no sites, or their peaks are not exact")
		}
		return nil
	})
	p.press("6")
	p.shows("following", "ALLOC", digits(process.Allocs + process.Frees)[:1])

	gone := func() bool { _, err := p.tmux("has-session"); return err != nil }
	// What was chosen is remembered; an invalid file is reported, and stays.
	p.press("4")
	p.shows("not the allocator's")
	p.press("q")
	file := filepath.Join(p.config, "tt-memtrace", "ui.json")
	waitFor(t, func() bool { b, _ := os.ReadFile(file); return strings.Contains(string(b), `"view": "map"`) })
	waitFor(t, gone)
	p.start(120, 40, "-p", pid)
	p.shows("1 overview")
	p.press("1")
	// It knows what was there before it came, and says since when.
	p.row(pid, digits(process.Buffers))
	p.shows("verified ", "s ago")
	p.press("8")
	p.shows("ALLOCATED BY", "≥")
	p.press("q")
	waitFor(t, gone)
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(120, 40, "-p", pid)
	p.shows("settings ignored")
	p.press("u", "q")
	waitFor(t, gone)
	if b, err := os.ReadFile(file); err != nil || string(b) != "{" {
		t.Errorf("%v %q", err, b)
	}
}

// Call stacks are switched on where the screen is on already: a site is then named by its code.
func TestStacksAreSwitchedOnTheScreen(t *testing.T) {
	w := steady(t, "n150", "--rate", "1000")
	p := shown(t, 160, 40, "-p", fmt.Sprint(w.PID()))
	p.shows("n150", "1 overview")
	p.press("8")
	p.shows("by size: x shows call sites", "buffers of ")
	p.press("x")
	p.shows("call stacks on", "loop.py:")
	p.press("x")
	p.shows("call stacks off")
	p.until(func(screen string) error {
		// What the loop holds is allocated again in each of its rounds.
		if strings.Contains(screen, "loop.py:") || !strings.Contains(screen, "buffers of ") {
			return errors.New("there are still stacks, or no buffers")
		}
		return nil
	})
	goesOn(t, w)
}

// A command that fails says so on the screen, and its words are there after that.
func TestACommandThatFailsSaysSoOnTheScreen(t *testing.T) {
	mayTrace(t)
	p := shown(t, 100, 24, "--", "sh", "-c", "echo no module named ttnn >&2; exit 3")
	p.shows("the command failed (exit status 3)", "no process used the runtime", "ended")
}

// ^Z stops the tool and gives the terminal back to the shell, and no more: a traced command runs on. With fg the
// screen is there again.
func TestStoppedFromTheTerminal(t *testing.T) {
	mayTrace(t)
	p := emptyPane(t)
	if out, err := p.tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "24", "env", "PS1=ready> ", "LC_ALL=C.UTF-8", "XDG_CONFIG_HOME="+p.config, "sh", "-i"); err != nil {
		t.Fatalf("tmux: %v: %s", err, out)
	}
	p.shows("ready>")
	alive := filepath.Join(p.config, "alive")
	p.press(tool+" -- sh -c 'while sleep 0.1; do echo again >>"+alive+"; done'", "Enter")
	p.shows("1 overview")
	written := func() int64 {
		info, err := os.Stat(alive)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	waitFor(t, func() bool { return written() > 0 }) // the screen is there before the command begins
	for range 2 {
		p.press("C-z")
		p.shows("Stopped", "ready>")
		before := written()
		waitFor(t, func() bool { return written() > before })
		p.press("fg", "Enter")
		p.shows("1 overview", "no process uses the runtime yet")
	}
	p.press("q")
	p.shows("ready>")
}

// largest waits for a largest free block that is the allocator's own, or a bound of it.
func (p *pane) largest(name string, v rig.View) {
	p.t.Helper()
	p.until(func(screen string) error {
		for l := range strings.Lines(screen) {
			has := strings.Fields(l)
			if len(has) < 5 || has[0] != name {
				continue
			}
			// … buffers, largest, bank "x" banks
			x := slices.Index(has, "x")
			if x < 3 {
				continue
			}
			number, bound := strings.CutPrefix(has[x-2], "≥")
			n, err := strconv.ParseUint(strings.ReplaceAll(number, ",", ""), 10, 64)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %q is no number", name, has[x-2])
			case n > v.LargestFreePerBank, !bound && n != v.LargestFreePerBank:
				return fmt.Errorf("%s: the largest free block is %s here, %d by the allocator", name, has[x-2], v.LargestFreePerBank)
			}
			return nil
		}
		return fmt.Errorf("no line of %s", name)
	})
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}
