package symbol

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"tt-memtrace/internal/elffile"
)

// A perf map (/tmp/perf-PID.map) has the names of code that a process generates at run time. The process may append to it all the
// time, so these limit reading it.
const (
	maxPerf      = 8 << 20 // bytes
	maxPerfLines = 100_000
	perfEvery    = time.Second
	// maxPerfs is how many processes' maps are kept.
	maxPerfs = 8
)

// perfMap is the perf map of a process.
type perfMap struct {
	list []perfEntry // sorted by address
	size int64       // of the file when it was read, bytes
	at   time.Time   // when it was last looked for
}

// perfEntry is a line of a perf map: a piece of generated code.
type perfEntry struct {
	start, end uint64
	name       string
}

// perfName returns the name of an address in a process's perf map, or "". later means that the map may have the address when it
// is read again, at most once in perfEvery.
func (l *librarian) perfName(pid uint32, address uint64) (name string, later bool) {
	m := l.perfs[pid]
	if m == nil {
		if len(l.perfs) >= maxPerfs {
			clear(l.perfs)
		}
		m = &perfMap{}
		l.perfs[pid] = m
	}
	if time.Since(m.at) >= perfEvery {
		m.at = time.Now()
		m.read(fmt.Sprintf("/proc/%d/root/tmp/perf-%d.map", pid, pid))
	}
	i, ok := slices.BinarySearchFunc(m.list, address, func(e perfEntry, a uint64) int {
		switch {
		case e.end <= a:
			return -1
		case e.start > a:
			return 1
		}
		return 0
	})
	if !ok {
		return "", m.size > 0
	}
	return m.list[i].name, false
}

// read reads the map if its size has changed.
func (m *perfMap) read(name string) {
	f, st, err := elffile.OpenRegular(name)
	if err != nil {
		*m = perfMap{at: m.at}
		return
	}
	defer f.Close()
	if st.Size == m.size {
		return
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPerf))
	if err != nil {
		return
	}
	m.size, m.list = st.Size, parsePerf(b)
}

// parsePerf returns the entries of a map, sorted by address. It skips lines that are not entries.
func parsePerf(b []byte) []perfEntry {
	var list []perfEntry
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(fields) != 3 {
			continue
		}
		start, err := strconv.ParseUint(strings.TrimPrefix(fields[0], "0x"), 16, 64)
		if err != nil {
			continue
		}
		size, err := strconv.ParseUint(strings.TrimPrefix(fields[1], "0x"), 16, 64)
		if err != nil || start+size <= start {
			continue
		}
		if list = append(list, perfEntry{start, start + size, fields[2]}); len(list) == maxPerfLines {
			break
		}
	}
	slices.SortFunc(list, func(a, b perfEntry) int { return cmp.Compare(a.start, b.start) })
	return list
}
