package metal

import (
	"bytes"
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/elffile"
	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/x86eval"
)

// A user's own build can have debug information: one more source for the offsets of a Buffer's fields, which must
// agree with the code. The runtime's is gigabytes, so it is mapped rather than read, and only the units that compiled
// the functions of a Buffer are parsed.

// DebugInfo is the result of reading a library's debug information.
type DebugInfo struct {
	// Path is the file that has it: the library, or one that was split off.
	Path string
	// Err says why it shows nothing, or is nil.
	Err error
}

// Bounds on reading debug information, which is untrusted. Most of it is never touched.
const (
	maxDebugTime   = 2 * time.Second
	maxInflated    = 64 << 20  // bytes, of all compressed sections
	maxAddresses   = 64 << 20  // bytes, of the addresses of all units
	maxAbbreviated = 512 << 10 // bytes, of the abbreviations of a unit
)

// debugFolder is where distributions keep debug information.
const debugFolder = "/usr/lib/debug"

// bufferClass and implClass are the classes that can have the fields of a Buffer.
const (
	bufferClass = "tt::tt_metal::Buffer"
	implClass   = "tt::tt_metal::BufferImpl"
)

// declared returns what the library's debug information says about a Buffer's fields; info is nil if there is none.
func (l *Library) declared() (list []Evidence, info *DebugInfo) {
	d, err := l.openDebug()
	if d == nil {
		return nil, nil
	}
	defer d.close()
	info = &DebugInfo{Path: d.path, Err: err}
	var classes map[string]class
	if err == nil {
		classes, info.Err = d.classes(l.bufferFunctions())
	}
	if info.Err != nil {
		return nil, info
	}
	for i, f := range fieldTable {
		if e, ok := declaration(classes, f.member); ok {
			e.Field, e.row = f.name, i
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		info.Err = fmt.Errorf("%s has no members of known names there", bufferClass)
	}
	return list, info
}

// declaration returns where a member is in a Buffer, or in an object that a member of it is or points to.
func declaration(classes map[string]class, name string) (Evidence, bool) {
	found := func(class string, m member, path x86eval.Path) (Evidence, bool) {
		return Evidence{Source: fmt.Sprintf("DWARF of %s::%s", class, name), proof: DWARF, path: path, size: int(m.size)}, true
	}
	if m, ok := classes[bufferClass][name]; ok {
		return found(bufferClass, m, x86eval.Path{Tail: m.offset})
	}
	m, ok := classes[implClass][name]
	if !ok {
		return Evidence{}, false
	}
	for _, holder := range classes[bufferClass] {
		switch {
		case holder.of != implClass:
		case holder.pointer:
			return found(implClass, m, x86eval.Path{Offsets: []int64{holder.offset}, Tail: m.offset})
		default:
			return found(implClass, m, x86eval.Path{Tail: holder.offset + m.offset})
		}
	}
	return Evidence{}, false
}

// bufferFunctions returns the sorted addresses of a Buffer's functions.
func (l *Library) bufferFunctions() (list []uint64) {
	for name, s := range l.symbols {
		rest, ok := strings.CutPrefix(name, "_ZN")
		rest = strings.TrimPrefix(rest, "K")
		if ok && elf.ST_TYPE(s.Info) == elf.STT_FUNC &&
			(strings.HasPrefix(rest, ofBuffer) || strings.HasPrefix(rest, ofBufferImpl)) {
			list = append(list, s.Value)
		}
	}
	slices.Sort(list)
	return list
}

// debugFile is a mapped file with debug information.
type debugFile struct {
	path     string
	mapped   []byte
	sections map[string][]byte // by their names without .debug_
	limit    *proc.Limit       // when to give up
	entries  int               // that were read
}

func (d *debugFile) close() {
	if d.mapped != nil {
		unix.Munmap(d.mapped)
	}
}

// openDebug opens the library's debug information; nil if there is none. An error means that there is some, but it
// cannot be used.
func (l *Library) openDebug() (*debugFile, error) {
	if l.elf.Section(".debug_info") != nil {
		d := &debugFile{path: l.Path, limit: proc.NewLimit(maxDebugTime, nil)}
		return d, d.load(l.file, l.elf)
	}
	link, sum := l.debugLink()
	own := func(path string) (*os.File, error) {
		f, _, err := openRegular(path)
		return f, err
	}
	beside := own
	if l.Beside != nil {
		beside = l.Beside
	}
	type place struct {
		path string
		open func(path string) (*os.File, error)
	}
	var places []place
	if len(l.BuildID) > 2 {
		places = append(places, place{filepath.Join(debugFolder, ".build-id", l.BuildID[:2], l.BuildID[2:]+".debug"), own})
	}
	if dir := filepath.Dir(l.Path); link != "" {
		places = append(places, place{filepath.Join(dir, link), beside}, place{filepath.Join(dir, ".debug", link), beside},
			place{filepath.Join(debugFolder, dir, link), own})
	}
	for _, p := range places {
		path := p.path
		f, err := p.open(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		d := &debugFile{path: path, limit: proc.NewLimit(maxDebugTime, nil)}
		if err != nil {
			return d, err
		}
		defer f.Close()
		return d, d.loadApart(f, l.BuildID, sum)
	}
	return nil, nil
}

// debugLink returns the name and checksum of the file that, by the library's .gnu_debuglink, has its debug
// information.
func (l *Library) debugLink() (name string, sum uint32) {
	s := l.elf.Section(".gnu_debuglink")
	if s == nil || s.Size > 4096 {
		return "", 0
	}
	b, err := s.Data()
	text, _, ok := bytes.Cut(b, []byte{0})
	if err != nil || !ok || len(b) < len(text)+5 || bytes.ContainsRune(text, '/') {
		return "", 0
	}
	return string(text), binary.LittleEndian.Uint32(b[len(b)-4:])
}

// loadApart loads a split-off debug file, if it belongs to this library.
func (d *debugFile) loadApart(f *os.File, id string, sum uint32) (err error) {
	defer recovered(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if err := elffile.CheckHeaders(f); err != nil {
		return err
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return err
	}
	if err := d.load(f, e); err != nil {
		return err
	}
	if has := buildID(e); id != "" && has != id {
		return fmt.Errorf("it has the build-id %s: it is not this library's", cmp.Or(has, "none"))
	}
	if id != "" {
		return nil
	}
	var has uint32
	for piece := range slices.Chunk(d.mapped, 16<<20) {
		if err := d.inTime(); err != nil {
			return err
		}
		has = crc32.Update(has, crc32.IEEETable, piece)
	}
	if has != sum {
		return errors.New("its checksum differs: it is not this library's")
	}
	return nil
}

// recovered turns a panic into an error: debug/elf and debug/dwarf are careful, but the file is untrusted, and can be
// truncated while it is mapped.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("damaged (%v)", r)
	}
}

// load maps the file and finds its sections.
func (d *debugFile) load(f *os.File, e *elf.File) (err error) {
	defer recovered(&err)
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if d.mapped, err = unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("mapping it: %w", err)
	}
	d.sections = map[string][]byte{}
	inflated := uint64(0)
	for _, s := range e.Sections {
		name, ok := strings.CutPrefix(s.Name, ".debug_")
		if !ok || s.Type == elf.SHT_NOBITS || name == "line" || name == "loc" || name == "loclists" {
			continue
		}
		if s.Flags&elf.SHF_COMPRESSED != 0 {
			if inflated += s.Size; s.Size > maxInflated || inflated > maxInflated {
				return fmt.Errorf("it is compressed, and more than %d bytes", maxInflated)
			}
			if d.sections[name], err = s.Data(); err != nil {
				return err
			}
			continue
		}
		if s.Offset > uint64(len(d.mapped)) || s.FileSize > uint64(len(d.mapped))-s.Offset {
			return fmt.Errorf("damaged: %s lies outside of the file", s.Name)
		}
		d.sections[name] = d.mapped[s.Offset : s.Offset+s.FileSize]
	}
	if n := len(d.sections["ranges"]) + len(d.sections["rnglists"]); n > maxAddresses {
		return fmt.Errorf("it is too large: %d bytes of addresses, more than %d", n, maxAddresses)
	}
	return nil
}

// class maps names to the members of a class.
type class map[string]member

// member of a class.
type member struct {
	// offset in the object and size, bytes.
	offset, size int64
	// of is the class of the member or, with pointer, the class that it points to; empty otherwise.
	of      string
	pointer bool
}

// classes finds a Buffer's classes in the units that compiled one of the functions.
func (d *debugFile) classes(functions []uint64) (found map[string]class, err error) {
	defer recovered(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	found = map[string]class{}
	for rest := d.sections["info"]; len(rest) > 0; {
		n := unitSize(rest)
		if n == 0 {
			return nil, errors.New("damaged: a unit lies outside of it")
		}
		if err := d.inTime(); err != nil {
			return nil, err
		}
		if u := d.unit(rest[:n], functions); u != nil {
			if err := d.search(u, found); err != nil {
				return nil, err
			}
		}
		if complete(found) {
			break
		}
		rest = rest[n:]
	}
	if found[bufferClass] == nil {
		return nil, fmt.Errorf("it does not define %s where its functions were compiled", bufferClass)
	}
	return found, nil
}

// complete reports whether all classes are found.
func complete(found map[string]class) bool {
	if found[bufferClass] == nil {
		return false
	}
	for _, m := range found[bufferClass] {
		if m.of == implClass && found[implClass] == nil {
			return false
		}
	}
	return true
}

func (d *debugFile) inTime() error {
	if d.limit.Over() {
		return fmt.Errorf("it is too large: looking through it took more than %v", maxDebugTime)
	}
	return nil
}

// next returns the next entry of a unit, nil at its end. It fails when time is up.
func (d *debugFile) next(r *dwarf.Reader) (*dwarf.Entry, error) {
	if d.entries++; d.entries%1024 == 0 {
		if err := d.inTime(); err != nil {
			return nil, err
		}
	}
	return r.Next()
}

// unitSize returns the size in bytes, header included, of the unit at the start of b; 0 if it is damaged.
func unitSize(b []byte) uint64 {
	const escape = 0xffffffff // of the 64-bit format
	if len(b) < 4 {
		return 0
	}
	n, header := uint64(binary.LittleEndian.Uint32(b)), uint64(4)
	if n == escape {
		if len(b) < 12 {
			return 0
		}
		n, header = binary.LittleEndian.Uint64(b[4:]), 12
	}
	if n == 0 || n > uint64(len(b))-header {
		return 0
	}
	return n + header
}

// abbreviations returns the offset of a unit's abbreviations.
func abbreviations(unit []byte) (uint64, bool) {
	wide, at := false, 4
	if binary.LittleEndian.Uint32(unit) == 0xffffffff {
		wide, at = true, 12
	}
	if len(unit) < at+12 {
		return 0, false
	}
	if binary.LittleEndian.Uint16(unit[at:]) >= 5 {
		at += 2 // the kind of unit, and the size of addresses
	}
	at += 2
	if wide {
		return binary.LittleEndian.Uint64(unit[at:]), true
	}
	return uint64(binary.LittleEndian.Uint32(unit[at:])), true
}

// unit opens a unit if it compiled one of the functions. It skips what cannot be read.
func (d *debugFile) unit(unit []byte, functions []uint64) *dwarf.Data {
	short := d.sections["abbrev"]
	at, ok := abbreviations(unit)
	if !ok || at > uint64(len(short)) {
		return nil
	}
	short = short[:min(uint64(len(short)), at+maxAbbreviated)]
	u, err := dwarf.New(short, nil, nil, unit, nil, nil, d.sections["ranges"], d.sections["str"])
	if err != nil {
		return nil
	}
	for _, name := range []string{"addr", "line_str", "rnglists", "str_offsets"} {
		if err := u.AddSection(".debug_"+name, d.sections[name]); err != nil {
			return nil
		}
	}
	root, err := u.Reader().Next()
	if err != nil || root == nil {
		return nil
	}
	ranges, err := u.Ranges(root)
	if err != nil {
		return nil
	}
	for _, r := range ranges {
		if i, _ := slices.BinarySearch(functions, r[0]); i < len(functions) && functions[i] < r[1] {
			return u
		}
	}
	return nil
}

// search looks for the classes in a unit.
func (d *debugFile) search(u *dwarf.Data, found map[string]class) error {
	within := map[string]bool{"": true, "tt": true, "tt::tt_metal": true, bufferClass: true, implClass: true}
	var open []string // the names of what the entry is in
	r := u.Reader()
	for {
		e, err := d.next(r)
		if err != nil {
			return err
		}
		if e == nil || e.Tag == 0 && len(open) == 0 {
			return nil
		}
		if e.Tag == 0 {
			open = open[:len(open)-1]
			continue
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		enter := false
		switch e.Tag {
		case dwarf.TagCompileUnit:
			name, enter = "", len(open) == 0
		case dwarf.TagNamespace, dwarf.TagClassType, dwarf.TagStructType:
			if len(open) > 0 {
				name = strings.TrimPrefix(open[len(open)-1]+"::"+name, "::")
				declared, _ := e.Val(dwarf.AttrDeclaration).(bool)
				enter = within[name] && !declared
			}
			if enter && e.Tag != dwarf.TagNamespace {
				found[name] = class{}
			}
		case dwarf.TagMember:
			if offset, ok := e.Val(dwarf.AttrDataMemberLoc).(int64); ok && len(open) > 0 && found[open[len(open)-1]] != nil {
				m := memberOf(u, e)
				m.offset = offset
				found[open[len(open)-1]][name] = m
			}
		}
		if !e.Children {
			continue
		}
		if enter {
			open = append(open, name)
		} else if err := d.skip(r, e); err != nil {
			return err
		}
	}
}

// skip goes to the entry behind an entry's children. The method of debug/dwarf recurses as deep as the file says.
func (d *debugFile) skip(r *dwarf.Reader, e *dwarf.Entry) error {
	if next, ok := e.Val(dwarf.AttrSibling).(dwarf.Offset); ok && next > e.Offset {
		r.Seek(next)
		return nil
	}
	for depth := 1; depth > 0; {
		e, err := d.next(r)
		if err != nil {
			return err
		}
		switch {
		case e == nil:
			return nil
		case e.Tag == 0:
			depth--
		case e.Children:
			depth++
		}
	}
	return nil
}

// memberOf describes a member by its type.
func memberOf(u *dwarf.Data, e *dwarf.Entry) (m member) {
	r := u.Reader()
	const most = 8 // names of a type, and what it points to
	for range most {
		at, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok {
			return m
		}
		r.Seek(at)
		var err error
		if e, err = r.Next(); err != nil || e == nil {
			return member{}
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		size, _ := e.Val(dwarf.AttrByteSize).(int64)
		if m.size == 0 {
			m.size = size
		}
		switch e.Tag {
		case dwarf.TagPointerType:
			if m.pointer {
				return m // to a pointer
			}
			m.size, m.pointer = 8, true
		case dwarf.TagTypedef, dwarf.TagConstType, dwarf.TagVolatileType:
		case dwarf.TagClassType, dwarf.TagStructType:
			for _, smart := range []string{"unique_ptr<", "shared_ptr<"} {
				if args, ok := strings.CutPrefix(name, smart); ok && !m.pointer {
					m.of, m.pointer = strings.TrimRight(strings.FieldsFunc(args+",", func(r rune) bool { return r == ',' })[0], "> "), true
					return m
				}
			}
			if name == strings.TrimPrefix(implClass, "tt::tt_metal::") {
				m.of = implClass
			}
			return m
		default:
			return m
		}
	}
	return m
}
