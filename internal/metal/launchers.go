package metal

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/elffile"
)

// Launchers is the launching functions of one file.
type Launchers struct {
	segments  []elf.ProgHeader
	functions []launcherFunction
}

// launcherFunction is a function that launches workloads of one operation.
type launcherFunction struct {
	start, end uint64
	operation  string
}

// At finds the function at an offset in the file.
func (c *Launchers) At(offset uint64) string {
	for _, s := range c.segments {
		if s.Flags&elf.PF_X == 0 || offset < s.Off || offset-s.Off >= s.Filesz {
			continue
		}
		address := offset - s.Off + s.Vaddr
		i, found := slices.BinarySearchFunc(c.functions, address, func(f launcherFunction, a uint64) int { return cmp.Compare(f.start, a) })
		if !found {
			i--
		}
		if i >= 0 && address < c.functions[i].end {
			return c.functions[i].operation
		}
	}
	return ""
}

// ReadLaunchers reads the launching functions of a file.
func ReadLaunchers(path string) (c *Launchers, err error) {
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
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxLibrary {
		return nil, errors.New("no library")
	}
	file := io.NewSectionReader(f, 0, st.Size)
	if err := elffile.CheckHeaders(file); err != nil {
		return nil, err
	}
	e, err := elf.NewFile(file)
	if err != nil {
		return nil, err
	}
	c = &Launchers{}
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
		err := elffile.EachSymbol(e, table, func(name string, s elf.Sym64) {
			if s.Size == 0 || !strings.Contains(name, launcherNameSpace) {
				return
			}
			if op := operationOf(name); op != "" {
				c.functions = append(c.functions, launcherFunction{s.Value, s.Value + s.Size, op})
			}
		})
		if err != nil {
			return nil, err
		}
		if len(c.functions) > 0 {
			break
		}
	}
	slices.SortFunc(c.functions, func(a, b launcherFunction) int { return cmp.Compare(a.start, b.start) })
	return c, nil
}

// operationOf extracts the operation's class, without its namespaces, from the mangled name of its launching
// function.
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
