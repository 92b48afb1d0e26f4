package discover

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tt-memtrace/test/fixture"
)

func TestCandidate(t *testing.T) {
	for path, want := range map[string]bool{
		"/a/ttnn/build/lib/libtt_metal.so":     true,
		"/a/libtt_metal.so.0.81":               true,
		"/a/libtt_metal.so (deleted)":          true,
		"/a/ttnn/_ttnncpp.so":                  true,
		"libtt_metal.so":                       true,
		"/a/libtt_metal.so.d/other":            false,
		"/a/xlibtt_metal.so":                   false,
		"/a/libtt_metal":                       false,
		"/a/_ttnn.so":                          false,
		"/usr/lib/x86_64-linux-gnu/libc.so.6":  false,
		"":                                     false,
		"[vdso]":                               false,
		"/memfd:libtt_metal.so (deleted)":      false,
		"//anon":                               false,
		"/a/libtt_metal.so\nb":                 true,
		"/a/\x00\xff/libtt_metal.so":           true,
		strings.Repeat("/a", 5000):             false,
		"/a/lib/python3/_ttnncpp.so.1 ignored": true,
	} {
		if got := Candidate(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
}

func TestMappingsListTheRuntimeOnce(t *testing.T) {
	p := fixture.Launch(t)
	if list, err := NewFinder().Mappings(p.PID); err != nil || len(list) != 0 {
		t.Errorf("before it is loaded: %+v, %v", list, err)
	}
	path := fixture.LibraryOf(t, fixture.LayoutB)
	fixture.Do(t, p, "open %s", path)
	list, err := NewFinder().Mappings(p.PID)
	if err != nil || len(list) != 1 || list[0].Path != path || list[0].PID != p.PID || list[0].Base == 0 || list[0].Base%4096 != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || list[0].ID.Inode != st.Ino {
		t.Errorf("it maps %+v, the file is %d, %v", list[0].ID, st.Ino, err)
	}
	if _, err := NewFinder().Mappings(math.MaxUint32); err == nil {
		t.Error("a process that is not there has mappings")
	}
	if _, ok := Users()[p.PID]; !ok {
		t.Error("it is not among the users of the runtime")
	}
}

// Another tracer reads the library, as this one does, and runs none of its code.
func TestMappingsLeaveOutWhoOnlyReads(t *testing.T) {
	f, err := os.Open(fixture.LibraryOf(t, fixture.LayoutB))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if list, err := NewFinder().Mappings(uint32(os.Getpid())); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// A file that is called as the runtime is, and has its code without its symbols, is not treated as the runtime where a device is held.
func TestMappingsSayWhatIsHiddenByAName(t *testing.T) {
	p := fixture.Holder(t, nil)
	path := filepath.Join(t.TempDir(), LibraryNames[0])
	if b, err := os.ReadFile(fixture.LibraryOf(t, fixture.Hidden)); err != nil || os.WriteFile(path, b, 0o755) != nil {
		t.Fatal(err)
	}
	fixture.Do(t, p, "open %s", path)
	finder := NewFinder()
	if _, err := finder.Mappings(p.PID); err != nil {
		t.Errorf("without a device: %v", err)
	}
	fixture.Do(t, p, "map %s", fixture.Device)
	if _, err := finder.Mappings(p.PID); !errors.Is(err, ErrHidden) || !strings.Contains(err.Error(), "has the runtime's code, but not its symbols") {
		t.Errorf("with a device: %v", err)
	}
	fixture.Do(t, p, "open %s", fixture.LibraryOf(t, fixture.LayoutB))
	if list, err := finder.Mappings(p.PID); err != nil || len(list) != 2 {
		t.Errorf("beside the runtime: %+v, %v", list, err)
	}
}

// If a process's main thread has ended, the kernel shows nothing under its PID: the error says so, and not that it does not use the runtime.
func TestMappingsOfAProcessWithoutItsMainThread(t *testing.T) {
	p := fixture.User(t, fixture.LayoutB)
	fixture.Do(t, p, "leave")
	if list, err := NewFinder().Mappings(p.PID); !errors.Is(err, ErrHidden) || len(list) > 0 {
		t.Errorf("%+v, %v", list, err)
	}
	stranger := fixture.Launch(t)
	fixture.Do(t, stranger, "leave")
	if list, err := NewFinder().Mappings(stranger.PID); err != nil || len(list) > 0 {
		t.Errorf("without the runtime: %+v, %v", list, err)
	}
}

// A file in the place of another, with its number, that is named like the runtime is not treated as the runtime because of the other.
func TestMappingsOfAFileInThePlaceOfAnother(t *testing.T) {
	path, finder := fixture.Write(t, fixture.Read(t, fixture.LibraryOf(t, fixture.LayoutB))), NewFinder()
	p := fixture.Holder(t, nil)
	fixture.Do(t, p, "map %s", fixture.Device)
	fixture.Do(t, p, "open %s", path)
	if list, err := finder.Mappings(p.PID); err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	p.Kill()
	if err := os.WriteFile(path, fixture.Read(t, fixture.LibraryOf(t, fixture.Hidden)), 0o644); err != nil { // into the same file
		t.Fatal(err)
	}
	p = fixture.Holder(t, nil)
	fixture.Do(t, p, "map %s", fixture.Device)
	fixture.Do(t, p, "open %s", path)
	if list, err := finder.Mappings(p.PID); !errors.Is(err, ErrHidden) {
		t.Errorf("%+v, %v", list, err)
	}
}
