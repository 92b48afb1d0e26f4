package record

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ncruces/go-strftime"
	"golang.org/x/sys/unix"
)

// Retention bounds the files that a recording leaves behind. 0 is no bound.
type Retention struct {
	// Files older than the newest.
	Files int
	// Bytes of all files together, the newest included.
	Bytes int64
	// Age since the last write.
	Age time.Duration
}

// conversions are the strftime conversions that a file name may have: none of them
// yields a slash or a space.
const conversions = "YymdHMSjFbaUVGusz"

// files names, rotates and removes the files of one recording. It never overwrites a
// file, and removes only recordings with names that it could have given.
type files struct {
	dir string
	// name of the newest file, in strftime's notation.
	name string
	// older matches the names of older files; the number is "" for one that has only a time.
	older *regexp.Regexp
	keep  Retention
}

func newFiles(path string, keep Retention) (*files, error) {
	f := &files{dir: filepath.Dir(path), name: filepath.Base(path), keep: keep}
	if strings.Contains(f.dir, "%") {
		return nil, fmt.Errorf("recording to %s: a time pattern may be in the file name, not in the directory", path)
	}
	var expr strings.Builder
	timed := false
	for rest := f.name; rest != ""; {
		switch {
		case rest[0] != '%':
			expr.WriteString(regexp.QuoteMeta(rest[:1]))
			rest = rest[1:]
			continue
		case len(rest) > 1 && rest[1] == '%':
			expr.WriteString("%")
		case len(rest) > 1 && strings.IndexByte(conversions, rest[1]) >= 0:
			timed = true
			expr.WriteString("[-+0-9A-Za-z]+")
		default:
			return nil, fmt.Errorf("recording to %s: %.2q is not a time pattern such as %%Y-%%m-%%d; %%%% is a percent sign", path, rest)
		}
		rest = rest[2:]
	}
	number := `\.([0-9]{1,9})`
	if timed {
		number = "(?:" + number + ")?"
	}
	f.older = regexp.MustCompile("^" + expr.String() + number + "$")
	return f, nil
}

// create begins a new file. A recording that already has its name, from before a restart
// or within the resolution of the time pattern, becomes name.1, that name.2, and so on.
func (f *files) create(now time.Time) (*os.File, error) {
	path := filepath.Join(f.dir, strftime.Format(f.name, now))
	if err := shift(path); err != nil {
		return nil, fmt.Errorf("creating the recording: %w", err)
	}
	f.prune(now, filepath.Base(path), 0)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating the recording: %w", err)
	}
	// It fails where there are no locks, which then protect from nothing.
	_ = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return file, nil
}

// shift frees a path by renaming the recording there and the numbered ones that follow it.
func shift(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode().IsRegular() && st.Size() == 0 {
		return os.Remove(path) // from a full disk, or mktemp
	}
	if err := rotatable(path, st); err != nil {
		return err
	}
	numbered := func(n int) string {
		if n == 0 {
			return path
		}
		return path + "." + strconv.Itoa(n)
	}
	n := 1
	for ; ; n++ {
		if _, err := os.Lstat(numbered(n)); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	for ; n >= 1; n-- {
		if err := os.Rename(numbered(n-1), numbered(n)); err != nil {
			return err
		}
	}
	return nil
}

// rotatable fails for files that are not recordings, and those that are being written.
func rotatable(path string, st os.FileInfo) error {
	if !st.Mode().IsRegular() || !isRecording(path) {
		return fmt.Errorf("%s exists and is not a recording: %w", path, fs.ErrExist)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("another tt-memtrace records into %s: %w", path, fs.ErrExist)
	}
	return nil
}

func isRecording(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	var magic [len(blockMagic)]byte
	_, err = file.Read(magic[:])
	return err == nil && magic == blockMagic
}

// prune removes the files that are not to be kept, oldest first, beside the newest and
// its bytes. What cannot be removed stays until the next time.
func (f *files) prune(now time.Time, newest string, bytes int64) {
	if f.keep == (Retention{}) {
		return
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return
	}
	type old struct {
		os.FileInfo
		name   string
		number int
	}
	var list []old
	for _, e := range entries {
		m := f.older.FindStringSubmatch(e.Name())
		if m == nil || e.Name() == newest {
			continue
		}
		st, err := e.Info()
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		number, _ := strconv.Atoi(m[1])
		list = append(list, old{st, strings.TrimSuffix(e.Name(), "."+m[1]), number})
	}
	slices.SortFunc(list, func(x, y old) int {
		return cmp.Or(y.ModTime().Compare(x.ModTime()), cmp.Compare(y.name, x.name), cmp.Compare(x.number, y.number))
	})
	for i, o := range list {
		bytes += o.Size()
		if f.keep.Files > 0 && i >= f.keep.Files || f.keep.Bytes > 0 && bytes > f.keep.Bytes ||
			f.keep.Age > 0 && now.Sub(o.ModTime()) > f.keep.Age {
			if path := filepath.Join(f.dir, o.Name()); isRecording(path) {
				_ = os.Remove(path)
			}
		}
	}
}
