package tracer

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// A ttnn operation launches its workload from function templates that are made
// for it alone, so the function that a launch was made from names the operation:
//
//	void ttnn::device_operation::detail::enqueue_mesh_workload<
//	    ttnn::device_operation::MeshDeviceOperationAdapter<ttnn::prim::MatmulDeviceOperation>>(…)
//
// or, where that one ends in a jump, one that calls it: launch_operation_with_adapter,
// create_and_cache_mesh_workload and others of the same name space.
const (
	launcher = "4ttnn16device_operation"
	adapter  = "MeshDeviceOperationAdapterI"
)

// callers is the launching functions of one file.
type callers struct {
	segments  []elf.ProgHeader
	functions []callerFunction
}

// callerFunction is a function that launches workloads of one operation.
type callerFunction struct {
	start, end uint64
	operation  string
}

// callerRange is where a process has mapped such a file.
type callerRange struct {
	start, end, offset uint64
	callers            *callers
}

// operation is the name of the ttnn operation whose launching function holds
// the code address, or "".
func (r *run) operation(pid uint32, address uint64) string {
	rel := r.relations(pid)
	for _, m := range rel.callers {
		if address >= m.start && address < m.end {
			return m.callers.at(address - m.start + m.offset)
		}
	}
	p, err := procfs.NewProc(int(pid))
	if err != nil {
		return ""
	}
	maps, err := p.ProcMaps()
	if err != nil {
		return ""
	}
	for _, m := range maps {
		if address < uint64(m.StartAddr) || address >= uint64(m.EndAddr) || m.Inode == 0 {
			continue
		}
		path := fmt.Sprintf("/proc/%d/root%s", pid, m.Pathname)
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			return ""
		}
		// A file that was built anew can have the number of the old one.
		id := fileVersion{FileID{m.Dev, m.Inode}, st.Ctim}
		c, ok := r.callers[id]
		if !ok {
			c, err = readCallers(path, m.Inode)
			if err != nil {
				c = &callers{}
			}
			if len(r.callers) >= maxLibraries {
				clear(r.callers)
			}
			r.callers[id] = c
			r.t.giveBack()
		}
		rel.callers = append(rel.callers, callerRange{uint64(m.StartAddr), uint64(m.EndAddr), uint64(m.Offset), c})
		return c.at(address - uint64(m.StartAddr) + uint64(m.Offset))
	}
	return ""
}

// at finds the function at an offset in the file.
func (c *callers) at(offset uint64) string {
	for _, s := range c.segments {
		if s.Flags&elf.PF_X == 0 || offset < s.Off || offset-s.Off >= s.Filesz {
			continue
		}
		address := offset - s.Off + s.Vaddr
		i, found := slices.BinarySearchFunc(c.functions, address, func(f callerFunction, a uint64) int { return cmp.Compare(f.start, a) })
		if !found {
			i--
		}
		if i >= 0 && address < c.functions[i].end {
			return c.functions[i].operation
		}
	}
	return ""
}

// readCallers reads the launching functions of a mapped file.
func readCallers(path string, inode uint64) (c *callers, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "opening", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading %s: damaged ELF file (%v)", path, r)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != inode || st.Size > maxLibrary {
		return nil, errors.New("not the file that is mapped")
	}
	file := io.NewSectionReader(f, 0, st.Size)
	if err := checkHeaders(file); err != nil {
		return nil, err
	}
	e, err := elf.NewFile(file)
	if err != nil {
		return nil, err
	}
	c = &callers{}
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD {
			c.segments = append(c.segments, p.ProgHeader)
		}
	}
	for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		table := e.SectionByType(kind)
		if table == nil {
			continue
		}
		err := eachSymbol(e, table, func(name []byte, s elf.Sym64) {
			if s.Size == 0 || !bytes.Contains(name, []byte(launcher)) {
				return
			}
			if op := operationOf(string(name)); op != "" {
				c.functions = append(c.functions, callerFunction{s.Value, s.Value + s.Size, op})
			}
		})
		if err != nil {
			return nil, err
		}
		if len(c.functions) > 0 {
			break
		}
	}
	slices.SortFunc(c.functions, func(a, b callerFunction) int { return cmp.Compare(a.start, b.start) })
	return c, nil
}

// operationOf takes the operation's class out of the mangled name of its
// launching function, without the name spaces around it.
func operationOf(symbol string) string {
	_, s, ok := strings.Cut(symbol, adapter)
	if !ok {
		return ""
	}
	if rest, ok := strings.CutPrefix(s, "N"); ok {
		s = rest
		if rest, ok := strings.CutPrefix(s, "S"); ok { // a name space that was named before
			if _, s, ok = strings.Cut(rest, "_"); !ok {
				return ""
			}
		}
	}
	name := ""
	for {
		digits := 0
		for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(s[:digits])
		if err != nil || n <= 0 || n > len(s)-digits {
			return name
		}
		name, s = s[digits:digits+n], s[digits+n:]
	}
}
