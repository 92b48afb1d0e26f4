package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/export"
	"tt-memtrace/test/rig"
)

// recorded is a recording of a short run.
func recorded(t *testing.T, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run.ttm")
	// A file of the test's own folder, which others may not enter.
	w := prepared(t, rig.Options{Cluster: "n300", Script: rig.Loop, Args: []string{"--seconds", "1"}})
	args := append(append([]string{"record", "-q", file}, flags...), "--")
	begin(t, call{args: append(args, w.Argv...), env: w.Env}).ends(fine)
	return file
}

// A recording shows without any rights what was there: in every command.
func TestARecordingNeedsNoRights(t *testing.T) {
	b, err := os.ReadFile(recorded(t))
	if err != nil {
		t.Fatal(err)
	}
	program := ofNobody(t)
	stdin := func(args ...string) result {
		t.Helper()
		return begin(t, call{program: program, args: args, stdin: bytes.NewReader(b), nobody: true}).ends(fine)
	}
	r := stdin("status", "--json", "--from", "-")
	var s export.Status
	if err := json.Unmarshal([]byte(r.out), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Ended) != 1 || *s.Ended[0].Allocs == 0 || !s.Exact || len(s.Chips) != 2 {
		t.Errorf("%d ended, exact %v: %s", len(s.Ended), s.Exact, r.out)
	}
	log := stdin("log", "--json", "--from", "-")
	allocs := uint64(strings.Count(log.out, `"event":"alloc"`))
	if allocs != *s.Ended[0].Allocs {
		t.Errorf("%d allocations in the log, %d in the accounts", allocs, s.Ended[0].Allocs)
	}
	// At its beginning there is nothing yet, half-way something.
	early := stdin("status", "--json", "--from", "-", "--until", "1ns")
	if err := json.Unmarshal([]byte(early.out), &s); err != nil || len(s.Ended) != 0 {
		t.Errorf("%d ended at the beginning: %v", len(s.Ended), err)
	}
	for format, want := range map[string]string{
		"text": "Peak use and its holders", "json": `"schema": 1`, "html": "</html>", "chrome": `"traceEvents"`, "csv": "at_seconds,chip,", "pprof": "\x1f\x8b",
	} {
		r := stdin("report", "--from", "-", "--format", format)
		if !strings.Contains(r.out, want) {
			t.Errorf("--format %s has no %q", format, want)
		}
		// That a browser asks nobody for anything, report's own test shows.
		if external := regexp.MustCompile(`<(script|img|iframe|link)[^>]*\s(src|href)=["']?http|@import|url\(["']?http`).FindString(r.out); format == "html" && external != "" {
			t.Errorf("the page is not self-contained: %s", external)
		}
	}
}

// A recording is shown to Prometheus as what is traced would be.
func TestMetricsOfARecording(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.ttm")
	run(t, fine, "demo", "--save", file)
	var s export.Status
	if err := json.Unmarshal([]byte(run(t, fine, "status", "--json", "--from", file, "--until", "25s").out), &s); err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprintf(`tt_memtrace_memory_requested_bytes{chip="0",memory="dram",private_to=""} %v`, float64(*s.Chips[0].Memory["dram"].Requested))}
	for _, p := range s.Processes {
		want = append(want, fmt.Sprintf(`pid="%d",pod=""} %d`, p.PID, *p.Allocs))
	}
	if len(want) != 3 {
		t.Fatalf("another moment was meant: %+v", s.Processes)
	}
	// From there on it hardly moves.
	at := []string{"--from", file, "--seek", "25s", "--speed", "1e-6"}
	for _, args := range [][]string{{"exporter", "--listen", "127.0.0.1:0"}, {"log", "--metrics", "127.0.0.1:0"}} {
		x := begin(t, call{args: append(args, at...)})
		x.err.await(t, "/metrics\n")
		_, address, _ := strings.Cut(x.err.String(), "metrics at ")
		page := ""
		missing := func(part string) bool { return !strings.Contains(page, part) }
		for deadline := time.Now().Add(patience); slices.ContainsFunc(want, missing) && time.Now().Before(deadline); { // it reads up to there
			answer, err := http.Get("http://" + strings.TrimSpace(address))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(answer.Body)
			if err := errors.Join(err, answer.Body.Close()); err != nil {
				t.Fatal(err)
			}
			page = string(b)
		}
		contains(t, page, want...)
		x.signal(os.Interrupt)
		x.ends(fine)
	}
}

// A recorder that is killed leaves what it recorded up to its last second.
func TestAKilledRecorderLeavesItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.ttm")
	w := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--seconds", "60", "--rate", "200"}})
	s := begin(t, call{args: append([]string{"record", file, "--"}, w.Argv...), env: w.Env})
	s.out.await(t, `"round"`) // it has allocated and freed
	deadline := time.Now().Add(patience)
	for size := int64(0); size < 4096; {
		st, err := os.Stat(file)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d bytes: %v", size, err)
		}
		size = st.Size()
		time.Sleep(10 * time.Millisecond)
	}
	s.kill()
	r := run(t, fine, "status", "--json", "--from", file)
	if !strings.Contains(r.err, "was not closed") || !strings.Contains(r.out, `"allocations": `) {
		t.Errorf("%v", r)
	}
}

// A full disk pauses the recording, not the tracing nor the command, and what was
// recorded until then is whole.
func TestAFullDiskPausesOnlyTheRecording(t *testing.T) {
	dir := t.TempDir()
	// Room for the header and one block, however badly it compresses, and for half of what comes.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=300k"); err != nil {
		t.Skip("no small disk can be mounted:", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	file := filepath.Join(dir, "run.ttm")
	w := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--rounds", "60"}})
	r := begin(t, call{args: append([]string{"log", "--json", "--record", file, "--"}, beside(w.Argv)...), env: w.Env}).ends(failed)
	if !strings.Contains(r.err, "no space left on device") || !strings.Contains(r.err, "tracing continues") {
		t.Errorf("it does not say what happened: %s", r.err)
	}
	if !regexp.MustCompile(`no space left on device: [1-9][0-9]* events are missing\n`).MatchString(r.err) {
		t.Errorf("it does not say how much is missing: %s", r.err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	kept := begin(t, call{args: []string{"log", "--json", "--from", "-"}, stdin: bytes.NewReader(b)}).end()
	// What is missing is marked, if the mark still fits on the disk.
	if kept.code != fine && !strings.Contains(kept.err, "events were lost") {
		t.Errorf("%d: %s", kept.code, kept.err)
	}
	was, is := logged(r.out), logged(kept.out)
	if is == "" || !strings.HasPrefix(was, is) || len(is) >= len(was) {
		t.Errorf("%d bytes of the log were recorded, of %d, or they are others", len(is), len(was))
	}
}

// A recording that paused and went on is not whole: its end says what is missing, and so does its report.
func TestARecordingThatPausedIsIncomplete(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("no small disk can be mounted:", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	file, filler := filepath.Join(dir, "run.ttm"), filepath.Join(dir, "filler")
	w := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--seconds", "60", "--rate", "1000"}})
	s := begin(t, call{args: append([]string{"record", file, "--"}, w.Argv...), env: w.Env})
	s.out.await(t, `"round"`)
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, 4<<10); err == nil; {
		_, err = f.Write(b)
	}
	s.err.await(t, "recording pauses")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	f.Close()
	s.err.await(t, " resumes; ")
	s.signal(os.Interrupt)
	r := s.ends(incomplete)
	missing := regexp.MustCompile(`tt-memtrace: ([0-9]+ events) are missing in the recording\n`).FindStringSubmatch(r.err)
	if missing == nil {
		t.Fatalf("it does not say how much is missing: %v", r)
	}
	report := run(t, incomplete, "report", file)
	contains(t, report.out, "! not exact: "+missing[1]+" are missing\n")
}

// logged are the lines of a log that are of buffers, without those of the command itself.
func logged(out string) string {
	var b strings.Builder
	for _, line := range lines(out) {
		if strings.Contains(line, `"event":"alloc"`) || strings.Contains(line, `"event":"free"`) {
			_, rest, _ := strings.Cut(line, `"event"`) // its time of day is worked out again
			fmt.Fprintln(&b, rest)
		}
	}
	return b.String()
}

// Each file of a rotated recording can be read alone, and all together are the whole.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.ttm")
	w := prepared(t, rig.Options{Cluster: "n150", Script: rig.Loop, Args: []string{"--seconds", "60", "--rate", "1000"}})
	s := begin(t, call{args: append([]string{"record", file, "--rotate-size", "8K", "--keep", "2", "--"}, w.Argv...), env: w.Env})
	eventually(t, patience, "it was rotated twice", func() bool {
		_, err := os.Stat(file + ".2")
		return err == nil
	})
	s.signal(os.Interrupt)
	s.ends(fine)
	for _, name := range []string{file, file + ".1", file + ".2"} {
		run(t, fine, "status", "--from", name)
	}
	if _, err := os.Stat(file + ".3"); err == nil {
		t.Error("more are kept than asked for")
	}
	one := run(t, fine, "status", "--json", "--from", file)
	all := run(t, fine, "status", "--json", "--from", file+".2", "--from", file+".1", "--from", file)
	same := func(out string) string {
		var s export.Status
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			t.Fatal(err)
		}
		s.Time = time.Time{}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if same(one.out) != same(all.out) {
		t.Errorf("the last alone:\n%s\nall:\n%s", one.out, all.out)
	}
}

// A recording with nothing in it says why, so that one who recorded the wrong command learns it immediately.
func TestRecordingOfNothing(t *testing.T) {
	mayTrace(t)
	r := run(t, fine, "record", filepath.Join(t.TempDir(), "r.ttm"), "--", "true")
	contains(t, r.err, "recorded 0 events", "no process used the runtime")
	r = run(t, fine, "record", "--sample", filepath.Join(t.TempDir(), "sampled.ttm"), "--", "true")
	contains(t, r.err, "no process was seen to use the runtime; one that ends between two samples is not seen")
	contains(t, run(t, fine, "status", "--sample", "--", "true").out, "not exact", "no process was seen to use the runtime", "no chip was seen to be opened", "S host: processes are sampled")
	contains(t, run(t, fine, "report", "--sample", "--", "true").out, "no process was seen to use the TT-Metal runtime")
}

// A command that shows nothing yet says what it waits for.
func TestWhatIsWaitedFor(t *testing.T) {
	w := steady(t, "n150", "--rate", "20")
	pid := fmt.Sprint(w.PID())
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"record", filepath.Join(t.TempDir(), "r.ttm"), "-p", pid}, "recording PID " + pid + ", until its end or ^C\n"},
		{[]string{"report", "-p", pid}, "tracing PID " + pid + " for the report, until its end or ^C\n"},
		{[]string{"report"}, "tracing all processes for the report, until ^C\n"},
	} {
		s := begin(t, call{args: c.args})
		s.err.await(t, c.says)
		s.signal(unix.SIGINT)
		if r := s.end(); r.code != fine && r.code != incomplete {
			t.Errorf("%v: %v", c.args, r)
		}
	}
}

// An error says what cannot be recorded or replayed.
func TestRecordingUsage(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("this is no recording, however long it is"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"record x --keep 3", wrongUsage, "need --rotate-size"}, {"exporter --keep-age 3d", wrongUsage, "need --record"},
		{"exporter --record x --keep-size 1G", wrongUsage, "need --rotate-size"}, {"record x --rotate-size 2M --keep-size 1M", wrongUsage, "more than"},
		{"record x --rotate-every 1h --keep-age old", wrongUsage, "12h or 30d"},
		{"record", wrongUsage, "one FILE"}, {"record a b", wrongUsage, "one FILE"}, {"record -o a b", wrongUsage, "one FILE"}, {"record -o a --", wrongUsage, "no command"}, {"record x --", wrongUsage, "no command"},
		{"record x --rotate-size 7X", wrongUsage, "not a size"}, {"record - --rotate-size 1M", wrongUsage, "cannot be rotated"}, {"record - -- true", wrongUsage, "the command's own"},
		{"replay", wrongUsage, "no recording"}, {"status --from", wrongUsage, "--from"}, {"status --speed 2", wrongUsage, "--from FILE"},
		{"status --from " + other, failed, "not a recording"}, {"status --from " + filepath.Join(dir, "none"), failed, "no such file"},
		{"status --from x -p 1", wrongUsage, "cannot be used"}, {"report --format pdf x", wrongUsage, "there is no format"}, {"report --diff x", wrongUsage, "two recordings"},
		{"report " + other, failed, "not a recording"}, {"report " + other + " -o " + dir, failed, "is a directory"}, {"status --from " + other + " --seek 2s --until 1s", wrongUsage, "before"},
	} {
		if r := run(t, c.code, strings.Fields(c.args)...); !strings.Contains(r.err, c.says) {
			t.Errorf("%s: no %q in %s", c.args, c.says, r.err)
		}
	}
}

// The demo runs for anyone, from the binary alone: no rights, no device, no runtime, and nothing else either but a terminal.
func TestDemoForAnyone(t *testing.T) {
	root := t.TempDir()
	copyFile(t, tool, filepath.Join(root, "tt-memtrace"))
	for _, dir := range []string{"dev", "tmp"} {
		path := filepath.Join(root, dir)
		if err := errors.Join(os.Mkdir(path, 0o777), os.Chmod(path, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	device := filepath.Join(root, "dev", "tty")
	if err := errors.Join(unix.Mknod(device, unix.S_IFCHR, int(unix.Mkdev(5, 0))), os.Chmod(device, 0o666), os.Chmod(root, 0o755)); err != nil {
		t.Skip(err)
	}
	anyone := func(code int, args ...string) result {
		t.Helper()
		return begin(t, call{program: "/tt-memtrace", args: args, env: []string{}, nobody: true, root: root}).ends(code)
	}
	anyone(fine, "demo", "--save", "/tmp/demo.ttm")
	st, err := os.Stat(filepath.Join(root, "tmp", "demo.ttm"))
	if err != nil || st.Size() > 1<<20 {
		t.Errorf("%v, %v", st, err)
	}
	contains(t, anyone(fine, "report", "/tmp/demo.ttm", "--json").out, "loop.py", "workload.py", "programs.py", `"exact": true`, `"chip": 7`)
	contains(t, anyone(wrongUsage, "demo").err, "terminal")

	for _, args := range [][]string{{"demo", "--seek", "20s"}, {"replay", "/tmp/demo.ttm", "--seek", "20s", "--speed", "2"}, {"--from", "/tmp/demo.ttm", "--seek", "20s"}} {
		keys, screen, tty := terminal(t)
		if err := tty.Chmod(0o666); err != nil {
			t.Fatal(err)
		}
		s := begin(t, call{program: "/tt-memtrace", tty: tty, args: args, env: []string{"TERM=xterm-256color"}, nobody: true, root: root})
		screen.await(t, "loop.py")
		io.WriteString(keys, "q")
		s.ends(fine)
	}
}
