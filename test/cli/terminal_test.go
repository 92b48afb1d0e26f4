package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/rig"
)

// colour is an SGR sequence that sets one: 30-38, 40-48, 90-97, 100-107.
var colour = regexp.MustCompile(`\x1b\[(?:[0-9;:]*[;:])?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:[;:][0-9;:]*)?m`)

// The screen shows the target on a terminal, in colours unless NO_COLOR is set,
// and end with q or with a signal; the target runs on.
func TestPanels(t *testing.T) {
	w := steady(t, "n150", "--rate", "1000")
	pid := fmt.Sprint(w.PID())
	for _, c := range []struct {
		noColor  string
		coloured bool
		end      func(keys io.Writer, s *session)
	}{
		{"NO_COLOR", true, func(keys io.Writer, _ *session) { io.WriteString(keys, "q") }},
		{"NO_COLOR=", true, func(keys io.Writer, _ *session) { io.WriteString(keys, "\x03") }},
		{"NO_COLOR=1", false, func(_ io.Writer, s *session) { s.signal(os.Interrupt) }},
		{"NO_COLOR=1", false, func(_ io.Writer, s *session) { s.signal(syscall.SIGQUIT) }},
	} {
		keys, screen, tty := terminal(t)
		s := begin(t, call{tty: tty, args: []string{"-p", pid}, env: environ("XDG_CONFIG_HOME="+t.TempDir(), "TERM=xterm-256color", "LC_ALL=C.UTF-8", "COLORTERM", c.noColor)})
		screen.await(t, "python") // the process is in the table
		c.end(keys, s)
		s.ends(fine)
		screen.await(t, "\x1b[?1049l") // the user's own screen is back
		if found := colour.FindString(screen.String()); (found != "") != c.coloured {
			t.Errorf("%s: colour %q", c.noColor, found)
		}
	}
	goesOn(t, w)
}

// Settings that cannot be kept are reported; nothing fails because of that.
func TestSettingsThatCannotBeKept(t *testing.T) {
	keys, screen, tty := terminal(t)
	s := begin(t, call{tty: tty, args: []string{"demo"}, env: environ("TERM=xterm-256color", "XDG_CONFIG_HOME=/proc/nowhere")})
	screen.await(t, "CHIP")
	io.WriteString(keys, "2q")
	s.ends(fine)
	screen.await(t, "keeping the settings: mkdir /proc/nowhere: no such file or directory")
}

// A terminal that can only print gets lines that fit into it.
func TestAPlainTerminalGetsLinesThatFit(t *testing.T) {
	const columns = 72
	_, screen, tty := terminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	begin(t, call{tty: tty, args: []string{"demo", "--speed", "0", "--exit"}, env: environ("TERM=dumb")}).ends(fine)
	screen.await(t, "Ended:")
	for _, l := range lines(screen.String()) {
		if l = strings.TrimRight(l, "\r"); len(l) > columns {
			t.Errorf("%d columns: %q", len(l), l)
		}
	}
}

// The text of status has colours on a terminal, and none where NO_COLOR is set.
func TestStatusIsColouredOnATerminal(t *testing.T) {
	w := steady(t, "n150", "--rate", "1000")
	for _, c := range []struct {
		env      string
		coloured bool
	}{{"NO_COLOR", true}, {"NO_COLOR=1", false}} {
		_, screen, tty := terminal(t)
		begin(t, call{tty: tty, args: []string{"status", "-p", fmt.Sprint(w.PID())}, env: environ("TERM=xterm-256color", c.env)}).ends(fine)
		screen.await(t, fmt.Sprint(w.PID()))
		if got := regexp.MustCompile(`\x1b\[[0-9;]*m`).MatchString(screen.String()); got != c.coloured {
			t.Errorf("%s: %q", c.env, screen)
		}
	}
	goesOn(t, w)
}

// What reads a recording for more than a second says on a terminal how far it is, in a line that
// goes when something else is written there.
func TestProgressOfReading(t *testing.T) {
	dir := t.TempDir()
	slowly := " --from ../../cmd/tt-memtrace/demo.ttm --speed 0.001"
	for command, ends := range map[string]string{
		"record " + dir + "/again.ttm":                           "tt-memtrace: recorded ",
		"forward --socket " + dir + "/nobody":                    "tt-memtrace: forwarding to ",
		"exporter --listen 127.0.0.1:0":                          "",
		"serve --socket " + dir + "/served >" + dir + "/printed": "",
		"status": "",
	} {
		t.Run(strings.Fields(command)[0], func(t *testing.T) {
			t.Parallel()
			_, screen, tty := terminal(t)
			s := begin(t, call{tty: tty, program: "/bin/sh", args: []string{"-c", "exec " + tool + " " + command + slowly}, env: environ("TERM=xterm-256color")})
			screen.await(t, "\r\x1b[Kreading: ")
			s.signal(os.Interrupt)
			s.end()
			screen.await(t, "%\r\x1b[K"+ends)
		})
	}
}

// ^C reaches the command once, from the terminal. It has the time to end in
// order, and its exit status counts.
func TestInterruptFromTheTerminal(t *testing.T) {
	mayTrace(t)
	left := filepath.Join(t.TempDir(), "left")
	script := `trap 'echo interrupt >>"$0"; sleep 0.3; echo orderly >>"$0"; exit 5' INT
		trap 'echo killed >>"$0"; exit 6' TERM
		echo ready; while :; do sleep 0.05; done`
	keys, screen, tty := terminal(t)
	s := begin(t, call{tty: tty, args: []string{"log", "--", "bash", "-c", script, left}})
	screen.await(t, "ready")
	io.WriteString(keys, "\x03")
	s.ends(5)
	if b, err := os.ReadFile(left); trimmed(b) != "interrupt\norderly" {
		t.Errorf("%v: %q", err, b)
	}

	// The real runtime's process likewise.
	p := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--seconds", "60"}})
	keys, screen, tty = terminal(t)
	s = begin(t, call{tty: tty, args: append([]string{"status", "--"}, p.Argv...), env: p.Env})
	screen.await(t, `"event": "round"`)
	io.WriteString(keys, "\x03")
	s.ends(fine)
	screen.await(t, `"event": "done"`)
}
