package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/aggregator"
)

// names lists a directory.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// A recorder that starts again keeps what earlier ones recorded, and only that.
func TestRestartKeepsEarlierRecordings(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.ttm")
	for pid := range uint32(3) {
		r := recorder(t, Options{Path: path}, aggregator.New())
		if _, err := NewRecorder(Options{Path: path, Header: func() Header { return Header{} }}); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "another tt-memtrace") {
			t.Errorf("two record into one file: %v", err)
		}
		r.Take([]aggregator.Event{{Kind: aggregator.ProcessExit, PID: pid}})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for pid, name := range []string{".2", ".1", ""} {
		b, err := os.ReadFile(path + name)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := all(bytes.NewReader(b)); err != io.EOF || len(list) != 1 || list[0].PID != uint32(pid) {
			t.Errorf("%s: %+v %v", name, list, err)
		}
		if st, err := os.Stat(path + name); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, st.Mode(), err)
		}
	}
	other := filepath.Join(dir, "model.py")
	if err := os.WriteFile(other, []byte("print()"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{other, link, dir} {
		if _, err := NewRecorder(Options{Path: name, Header: func() Header { return Header{} }}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := os.ReadFile(other); string(b) != "print()" {
		t.Errorf("%q %v", b, err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := recorder(t, Options{Path: empty}, aggregator.New()).Close(); err != nil {
		t.Error(err)
	}
}

func TestRetention(t *testing.T) {
	now := time.Date(2026, 3, 29, 12, 0, 0, 0, time.Local)
	// Written before now, one an hour, of 100 bytes.
	hours := func(n int) string { return now.Add(-time.Duration(n) * time.Hour).Format("x-20060102-15.ttm") }
	strangers := []string{"x-20260329-11.ttm.bak", "y-20260329-11.ttm", "x-20260329-0.txt", "x-stranger.ttm"}
	for _, c := range []struct {
		keep Retention
		want []string
	}{
		{Retention{}, []string{hours(1), hours(2), hours(2) + ".1", hours(3), hours(30)}},
		{Retention{Files: 2}, []string{hours(1), hours(2)}},
		{Retention{Bytes: 450}, []string{hours(1), hours(2), hours(2) + ".1", hours(3)}},
		{Retention{Age: 24 * time.Hour}, []string{hours(1), hours(2), hours(2) + ".1", hours(3)}},
		{Retention{Files: 3, Bytes: 250, Age: time.Hour}, []string{hours(1)}},
	} {
		dir := t.TempDir()
		file := func(name, content string, age time.Duration) {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, fmt.Appendf(nil, "%-100s", content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, time.Time{}, now.Add(-age)); err != nil {
				t.Fatal(err)
			}
		}
		for i, n := range []int{1, 2, 2, 3, 30} {
			file(hours(n)+strings.Repeat(".1", max(0, i-1)*max(0, 3-i)), "TTMR", time.Duration(n)*time.Hour)
		}
		for _, s := range strangers {
			file(s, map[bool]string{true: "mine", false: "TTMR"}[strings.Contains(s, "stranger")], 1000*time.Hour)
		}
		f, err := newFiles(filepath.Join(dir, "x-%Y%m%d-%H.ttm"), c.keep)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // and again within the resolution of the pattern
			n, err := f.create(now)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(n, "TTMR")
			n.Close()
			os.Chtimes(n.Name(), time.Time{}, now)
			if c.keep.Files > 0 || c.keep.Bytes > 0 {
				break
			}
		}
		want := append(slices.Clone(c.want), strangers...)
		want = append(want, hours(0))
		if c.keep.Files == 0 && c.keep.Bytes == 0 {
			want = append(want, hours(0)+".1")
		}
		slices.Sort(want)
		if got := names(t, dir); !slices.Equal(got, want) {
			t.Errorf("%+v leaves\n%v, not\n%v", c.keep, got, want)
		}
	}
}

func TestFileNames(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.Local)
	for path, want := range map[string]string{
		"/r/run.ttm": "run.ttm", "/r/%Y-%m-%d_%H%M%S.ttm": "2026-02-03_040506.ttm", "/r/50%%-%j.ttm": "50%-034.ttm",
		"/r/%Q": "", "/r/%": "", "/r/%D": "", "/r/a%/b": "", "/r/%Y/x": "",
	} {
		f, err := newFiles(path, Retention{})
		if (err != nil) != (want == "") {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if err != nil {
			continue
		}
		f.dir = t.TempDir()
		file, err := f.create(at)
		if err != nil || filepath.Base(file.Name()) != want {
			t.Errorf("%s becomes %v, %v", path, file, err)
		}
		if err == nil {
			if !f.older.MatchString(want + ".1") {
				t.Errorf("%s is not recognised", want)
			}
			file.Close()
		}
	}
}

// A full disk pauses the recording. When there is room again it goes on with the state,
// and says how many events are missing.
func TestFullDiskAndItsEnd(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skip("no small disk can be mounted:", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	defer func(was time.Duration) { maintainEvery = was }(maintainEvery)
	maintainEvery = 5 * time.Millisecond
	for _, rotated := range []bool{false, true} {
		t.Run(fmt.Sprintf("rotated %v", rotated), func(t *testing.T) {
			var mu sync.Mutex
			var notices []string
			path := filepath.Join(dir, fmt.Sprint(rotated))
			accounts := aggregator.New()
			o := Options{Path: path, Notice: func(s string) {
				mu.Lock()
				defer mu.Unlock()
				notices = append(notices, s)
			}}
			if rotated {
				o.MaxBytes = 1
			}
			r := recorder(t, o, accounts)
			taken := uint64(0)
			take := func(n uint64) {
				for range n {
					taken++
					e := aggregator.Event{Kind: aggregator.Alloc, PID: 1, Time: taken, Buffer: taken % 500, Size: taken * taken, Address: taken * 7919}
					r.Take([]aggregator.Event{e})
					accounts.Apply(&e)
					r.Applied()
				}
			}
			await := func(what string, done func() bool) {
				t.Helper()
				for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%s: %+v", what, r.Stats())
					}
					take(10)
				}
			}
			take(1000)
			await("it writes", func() bool { return r.Stats().Events > 1000 })
			filler := filepath.Join(dir, "filler")
			b := make([]byte, 64<<10)
			f, err := os.Create(filler)
			for err == nil {
				_, err = f.Write(b)
			}
			f.Close()
			await("it pauses", func() bool { take(50); return r.Stats().Paused })
			await("events are lost", func() bool { return r.Stats().Lost > 0 })
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			await("it resumes", func() bool { return !r.Stats().Paused })
			take(100)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			s := r.Stats()
			if s.Failures != 1 || s.Lost == 0 || s.Written.IsZero() {
				t.Errorf("%+v", s)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(notices) != 2 || !strings.Contains(notices[0], "no space left on device: recording pauses") || !strings.Contains(notices[1], fmt.Sprintf("%d events are missing", s.Lost)) {
				t.Errorf("%q", notices)
			}
			replay := aggregator.New()
			var told, lost uint64
			state := false
			for n := len(names(t, dir)); n >= 0; n-- {
				name := fmt.Sprintf("%s.%d", path, n)
				if n == 0 {
					name = path
				}
				b, err := os.ReadFile(name)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				list, err := all(bytes.NewReader(b))
				if err != io.EOF {
					t.Errorf("%s: %v", name, err)
				}
				for i := range list {
					replay.Apply(&list[i])
					switch e := &list[i]; {
					case e.Kind == aggregator.StateBegin, e.Kind == aggregator.StateEnd:
						state = e.Kind == aggregator.StateBegin
					case state:
					case e.Kind == aggregator.Lost:
						lost += e.Count
					default:
						told++
					}
				}
			}
			if told+lost != taken || lost != s.Lost {
				t.Errorf("%d events are there and %d marked as lost (%d counted), of %d", told, lost, s.Lost, taken)
			}
			if got, want := fmt.Sprint(replay.Buffers(1)), fmt.Sprint(accounts.Buffers(1)); got != want || want == "[]" {
				t.Errorf("it ends with\n%.300s, not\n%.300s", got, want)
			}
		})
	}
}
