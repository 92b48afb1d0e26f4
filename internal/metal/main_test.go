package metal

import (
	"errors"
	"os"
	"strings"
	"testing"

	"tt-memtrace/test/fixture"
)

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

func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }
