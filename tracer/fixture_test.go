package tracer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"tt-memtrace/test/fixture"
)

// helperEnv makes the test binary one of the helpers instead.
const helperEnv = "TT_MEMTRACE_TEST_HELPER"

// helpers run in a process of their own.
var helpers = map[string]func(args []string) error{
	"attach":   helpAttach,
	"checkpid": helpCheckPID,
	"rights":   helpRights,
	"maps":     helpMaps,
}

// built are the libraries that tests share, removed at the end.
var built struct {
	sync.Mutex
	dir     string
	results map[string]func() (string, error)
}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// helper is the command that runs one of the helpers.
func helper(name string, args ...string) *exec.Cmd {
	// By this name also another user can run it, whatever folder it lies in.
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// once builds something into a folder of its own, the first time it is asked for.
func once(t testing.TB, key string, build func(dir string) (string, error)) string {
	t.Helper()
	built.Lock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "tt-memtrace-fixture-")
		if err != nil {
			built.Unlock()
			t.Fatal(err)
		}
		built.dir, built.results = dir, map[string]func() (string, error){}
	}
	f := built.results[key]
	if f == nil {
		dir := filepath.Join(built.dir, fmt.Sprint(len(built.results)))
		f = sync.OnceValues(func() (string, error) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return "", err
			}
			return build(dir)
		})
		built.results[key] = f
	}
	built.Unlock()
	path, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func library(t testing.TB, b fixture.Build) string {
	t.Helper()
	if b.Compiler != "" {
		if _, err := exec.LookPath(b.Compiler); err != nil {
			t.Skip(err)
		}
	}
	return once(t, fmt.Sprintf("%+v", b), b.Library)
}

// still is a library to be looked at only.
func still(t testing.TB, b fixture.Build) string {
	t.Helper()
	b.Still = true
	return library(t, b)
}

func driver(t testing.TB) string {
	t.Helper()
	return once(t, "driver", fixture.Driver)
}

var (
	layoutA = fixture.Build{}
	layoutB = fixture.Build{Flags: []string{"-DLAYOUT_B"}}
)

func flags(s string) fixture.Build { return fixture.Build{Flags: strings.Fields(s)} }

func open(t testing.TB, path string) *Library {
	t.Helper()
	l, err := OpenLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// refused checks that an error is one for the user: it is ErrUnsupported and
// says what was wrong.
func refused(t testing.TB, err error, says ...string) {
	t.Helper()
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("the error is %v, not one that wraps ErrUnsupported", err)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error %q does not say %q", err, s)
		}
	}
}
