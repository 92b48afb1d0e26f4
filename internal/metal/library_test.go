package metal

import (
	"bytes"
	"compress/flate"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
	"tt-memtrace/test/fixture"
)

// attempt does with a file all that is done before a probe is attached.
func attempt(path string) error {
	l, err := OpenLibrary(path)
	if err != nil {
		return err
	}
	defer l.Close()
	if _, err := l.Cover(); err != nil {
		return err
	}
	_, err = l.Layout()
	return err
}

// image is an ELF file to be damaged.
type image []byte

// Where the ELF header has what.
const (
	eMachine   = 18
	ePhoff     = 32
	eShoff     = 40
	ePhentsize = 54
	ePhnum     = 56
	eShentsize = 58
	eShnum     = 60
	eShstrndx  = 62
)

// Where a section header has what.
const (
	shType    = 4
	shFlags   = 8
	shOffset  = 24
	shSize    = 32
	shLink    = 40
	shEntsize = 56
	shHeader  = 64
)

func (e image) put(at int, size int, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	copy(e[at:at+size], b[:])
}

// section is where the header of the section with this name is.
func (e image) section(t testing.TB, name string) int {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(e))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range f.Sections {
		if s.Name == name {
			return int(binary.LittleEndian.Uint64(e[eShoff:])) + i*shHeader
		}
	}
	t.Fatalf("no section %s", name)
	return 0
}

func TestDamagedFilesAreRefused(t *testing.T) {
	whole := fixture.Read(t, fixture.StillOf(t, fixture.Build{Strip: true}))
	put := func(at, size int, v uint64) func(image) []byte {
		return func(e image) []byte { e.put(at, size, v); return e }
	}
	section := func(name string, at, size int, v uint64) func(image) []byte {
		return func(e image) []byte { e.put(e.section(t, name)+at, size, v); return e }
	}
	for _, test := range []struct {
		name   string
		damage func(image) []byte
		says   string
	}{
		{"empty", func(e image) []byte { return nil }, ""},
		{"a byte", func(e image) []byte { return e[:1] }, ""},
		{"only the magic number", func(e image) []byte { return e[:4] }, ""},
		{"half of the header", func(e image) []byte { return e[:32] }, ""},
		{"only the header", func(e image) []byte { return e[:64] }, ""},
		{"half", func(e image) []byte { return e[:len(e)/2] }, ""},
		{"all but the last byte", func(e image) []byte { return e[:len(e)-1] }, ""},
		{"a text", func(e image) []byte { return []byte("this is not a library\n") }, "magic"},
		{"a linker script", func(e image) []byte { return []byte("/* GNU ld script */\nINPUT(libtt_metal.so.1)\n") }, "magic"},
		{"zeros", func(e image) []byte { return make([]byte, len(e)) }, "magic"},
		{"32 bits", put(4, 1, 1), ""},
		{"big-endian", put(5, 1, 2), ""},
		{"of the future", put(6, 1, 9), "version"},
		{"for aarch64", put(eMachine, 2, uint64(elf.EM_AARCH64)), "not for x86-64"},
		{"for x32", func(e image) []byte {
			h := elf.Header32{Type: 3, Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: 52, Phentsize: 32, Shentsize: 40}
			copy(h.Ident[:], "\x7fELF\x01\x01\x01")
			var b bytes.Buffer
			binary.Write(&b, binary.LittleEndian, h)
			return b.Bytes()
		}, "not for x86-64"},
		{"section headers behind the end", put(eShoff, 8, 1<<40), ""},
		{"section headers before the start", put(eShoff, 8, 1<<63), ""},
		{"section headers that overlap the header", put(eShoff, 8, 8), ""},
		{"too many sections", put(eShnum, 2, 0xfeff), ""},
		{"no sections", put(eShnum, 2, 0), ""},
		{"no section headers at all", func(e image) []byte {
			e.put(eShoff, 8, 0)
			e.put(eShnum, 2, 0)
			e.put(eShstrndx, 2, 0)
			return e
		}, ""},
		{"section headers of no size", put(eShentsize, 2, 0), ""},
		{"section headers of a huge size", put(eShentsize, 2, 0xffff), ""},
		{"names in no section", put(eShstrndx, 2, 0xfff0), ""},
		{"program headers behind the end", put(ePhoff, 8, 1<<40), ""},
		{"program headers before the start", put(ePhoff, 8, 1<<63), ""},
		{"no program headers", put(ePhnum, 2, 0), "executable"},
		{"program headers of no size", put(ePhentsize, 2, 0), ""},
		{"a symbol table of no type", section(".dynsym", shType, 4, 1), "no function"},
		{"a symbol table behind the end", section(".dynsym", shOffset, 8, 1<<40), ""},
		{"a symbol table before the start", section(".dynsym", shOffset, 8, 1<<63), ""},
		{"a symbol table of a huge size", section(".dynsym", shSize, 8, 1<<40), ""},
		{"a symbol table of any size", section(".dynsym", shSize, 8, ^uint64(0)), ""},
		{"a symbol table of an odd size", section(".dynsym", shSize, 8, 25), ""},
		{"an empty symbol table", section(".dynsym", shSize, 8, 0), ""},
		{"symbols with no names", section(".dynsym", shLink, 4, 0), ""},
		{"symbols with names in no section", section(".dynsym", shLink, 4, 1<<31), ""},
		{"names of a huge size", section(".dynstr", shSize, 8, 1<<40), ""},
		{"names that are none", section(".dynstr", shSize, 8, 1), ""},
		{"names behind the end", section(".dynstr", shOffset, 8, 1<<63-1), ""},
		{"relocations of a huge size", section(".rela.dyn", shSize, 8, 1<<40), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			refused(t, attempt(fixture.Write(t, test.damage(bytes.Clone(whole)))), test.says)
		})
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir, "/dev/null"} {
		refused(t, attempt(path), "not a regular file", path)
	}
	if err := attempt(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if err := attempt(loop); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link to itself: %v", err)
	}
	large := fixture.Write(t, nil)
	if err := os.Truncate(large, maxLibrary+1); err != nil {
		t.Fatal(err)
	}
	refused(t, attempt(large), "more than")
	refused(t, attempt("/proc/self/exe"), "no function of tt::tt_metal")
}

// What a file claims to hold must not cost more than reading an honest one.
func TestHugeClaimsCostLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("writes large files")
	}
	whole := fixture.Read(t, fixture.StillOf(t, fixture.LayoutA))
	end := (len(whole) + 4095) &^ 4095
	// zeros is a compressed section that claims to be so many bytes, with its
	// header: the same block again and again.
	zeros := func(size int) []byte {
		var block, b bytes.Buffer
		z, err := flate.NewWriter(&block, flate.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		z.Write(make([]byte, 1<<20))
		z.Flush()
		binary.Write(&b, binary.LittleEndian, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: uint64(size), Addralign: 1})
		b.WriteString("\x78\x01")
		b.Write(bytes.Repeat(block.Bytes(), size>>20))
		return b.Bytes()
	}
	compressed := func(name string) func(image) []byte {
		return func(e image) []byte {
			z := zeros(512 << 20)
			at := e.section(t, name)
			e.put(at+shFlags, 8, uint64(elf.SHF_COMPRESSED|elf.SHF_ALLOC))
			e.put(at+shOffset, 8, uint64(end))
			e.put(at+shSize, 8, uint64(len(z)))
			return append(append(e, make([]byte, end-len(e))...), z...)
		}
	}
	hole := func(name string) func(image) []byte {
		return func(e image) []byte {
			at := e.section(t, name)
			e.put(at+shOffset, 8, uint64(end))
			e.put(at+shSize, 8, maxLibrary-uint64(end)-4096)
			return e
		}
	}
	for _, test := range []struct {
		name   string
		damage func(image) []byte
	}{
		{".symtab in a hole", hole(".symtab")},
		{".dynsym in a hole", hole(".dynsym")},
		{".strtab in a hole", hole(".strtab")},
		{".shstrtab in a hole", hole(".shstrtab")},
		{".rela.dyn in a hole", hole(".rela.dyn")},
		{"sections in a hole", func(e image) []byte {
			e.put(eShoff, 8, uint64(end))
			e.put(eShnum, 2, 0)
			e = append(e, make([]byte, end-len(e)+2*shHeader)...)
			e.put(end+shSize, 8, (maxLibrary-uint64(end))/shHeader-64)
			return e
		}},
		{".symtab compressed", compressed(".symtab")},
		{".dynsym compressed", compressed(".dynsym")},
		{".strtab compressed", compressed(".strtab")},
		{".shstrtab compressed", compressed(".shstrtab")},
		{".rela.dyn compressed", compressed(".rela.dyn")},
		{".note.gnu.build-id compressed", compressed(".note.gnu.build-id")},
		{"one long name for many symbols", func(e image) []byte {
			const length, count = 1 << 20, 1 << 13
			symbols, names := e.section(t, ".symtab"), e.section(t, ".strtab")
			e = append(e, make([]byte, end-len(e))...)
			e = append(e, bytes.Repeat([]byte{'x'}, length)...)
			e = append(e, 0)
			var s bytes.Buffer
			binary.Write(&s, binary.LittleEndian, elf.Sym64{Name: 1, Info: 2, Shndx: 1, Value: 1, Size: 1})
			e = append(e, bytes.Repeat(s.Bytes(), count)...)
			e.put(names+shOffset, 8, uint64(end))
			e.put(names+shSize, 8, length+1)
			e.put(symbols+shOffset, 8, uint64(end+length+1))
			e.put(symbols+shSize, 8, count*24)
			return e
		}},
		{"packed relocations that repeat", func(e image) []byte {
			const words = 1 << 20
			at := e.section(t, ".rela.dyn")
			e = append(e, make([]byte, end-len(e)+8*words)...)
			for i := range words {
				e.put(end+8*i, 8, ^uint64(0))
			}
			e.put(end, 8, 0)
			// The first segment goes on for ever.
			first := int(binary.LittleEndian.Uint64(e[ePhoff:]))
			e.put(first+40, 8, 1<<40)
			e.put(at+shType, 4, 19)
			e.put(at+shOffset, 8, uint64(end))
			e.put(at+shSize, 8, 8*words)
			return e
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := fixture.Write(t, test.damage(bytes.Clone(whole)))
			if st, err := os.Stat(path); err != nil {
				t.Fatal(err)
			} else if st.Size() < maxLibrary && strings.HasSuffix(test.name, "hole") {
				if err := os.Truncate(path, maxLibrary); err != nil {
					t.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := attempt(path); err != nil {
				refused(t, err)
			}
			runtime.ReadMemStats(&after)
			if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 100 {
				t.Errorf("it took %d MB of memory", mb)
			}
		})
	}
}

// Code that is evaluated is anybody's too: in the place of a function that shows
// a field is one that never returns.
func TestEndlessFunctionsAreRefused(t *testing.T) {
	path := fixture.StillOf(t, fixture.WithFlags("-O2 -DIMPL"))
	whole, l := fixture.Read(t, path), open(t, path)
	for _, f := range fieldTable {
		for _, by := range f.by {
			s, ok := l.symbols[by.function]
			if !ok {
				continue
			}
			at, ok := l.fileOffset(s.Value)
			if !ok {
				t.Fatal(by.function)
			}
			for does, code := range map[string]string{
				"jumps to itself":  "\xeb\xfe",
				"calls itself":     "\xe8\xfb\xff\xff\xff",
				"reads a field":    "\x48\x8b\x07\xeb\xfb",
				"reads all fields": "\x48\x8b\x07\x48\x83\xc7\x08\xeb\xf7",
				"reads all bytes":  "\x8a\x07\x48\xff\xc7\xeb\xf9",
			} {
				data := bytes.Clone(whole)
				copy(data[at:], code)
				start := time.Now()
				if err := attempt(fixture.Write(t, data)); err != nil {
					refused(t, err)
				}
				if took := time.Since(start); took > time.Minute {
					t.Errorf("%s that %s: %v", by.function, does, took)
				}
			}
		}
	}
}

// FuzzOpenLibrary changes words of a library that is good. Whatever comes of
// it, the result is one that can be used or an error that says why not.
func FuzzOpenLibrary(f *testing.F) {
	whole := fixture.Read(f, fixture.StillOf(f, fixture.Build{Strip: true}))
	f.Add(uint32(0), []byte{}, uint32(0))
	f.Add(uint32(eShoff), []byte{0, 0, 0, 0, 0, 0, 0, 1}, uint32(0))
	f.Add(uint32(eShnum), []byte{0, 0}, uint32(0))
	f.Add(uint32(ePhoff), []byte{8}, uint32(100))
	shoff := binary.LittleEndian.Uint32(whole[eShoff:])
	for i := range binary.LittleEndian.Uint16(whole[eShnum:]) {
		for _, field := range []uint32{shType, shFlags, shOffset, shSize, shLink, shEntsize} {
			f.Add(shoff+uint32(i)*shHeader+field, []byte{0xff, 0x7f}, uint32(0))
		}
	}
	for _, g := range []string{".text", ".plt", ".dynsym", ".dynstr", ".rela.dyn", ".rela.plt", ".note.gnu.build-id"} {
		at := image(whole).section(f, g)
		offset := binary.LittleEndian.Uint32(whole[at+shOffset:])
		f.Add(offset+24, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, uint32(0))
		f.Add(offset, []byte{0xeb, 0xfe}, uint32(0))
	}
	fd, err := unix.MemfdCreate("libtt_metal.so", 0)
	if err != nil {
		f.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "libtt_metal.so")
	f.Cleanup(func() { file.Close() })
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	f.Fuzz(func(t *testing.T, at uint32, change []byte, cut uint32) {
		data := bytes.Clone(whole)
		copy(data[int(at)%len(data):], change)
		data = data[:len(data)-int(cut)%len(data)]
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		l, err := OpenLibrary(path)
		if err != nil {
			refused(t, err)
			return
		}
		defer l.Close()
		c, err := l.Cover()
		if err != nil {
			refused(t, err)
		}
		for _, p := range c.Probes {
			if !p.Emulated || p.Point == nil || p.Offset >= uint64(len(data)) {
				t.Errorf("%+v in %d bytes", p, len(data))
			}
		}
		layout, err := l.Layout()
		if err != nil {
			refused(t, err)
			return
		}
		if layout.Span() > WindowSize {
			t.Errorf("%+v reaches out of the window", layout)
		}
		for _, f := range layout.Fields {
			if f.Offset+uint32(f.Size) > layout.Span() {
				t.Errorf("%+v reaches out of what is read", layout)
			}
		}
	})
}

func TestPackageRelease(t *testing.T) {
	for _, test := range []struct {
		name    string
		folders []string
		library string
		want    string
	}{
		{"in site-packages", []string{"site-packages/ttnn-0.81.1.dist-info"}, "site-packages/ttnn/build/lib", "0.81.1"},
		{"in dist-packages", []string{"dist-packages/ttnn-0.59.0rc58.dist-info"}, "dist-packages/ttnn/build/lib", "0.59.0rc58"},
		{"a local version", []string{"p/ttnn-0.70.0+local.1.dist-info"}, "p/ttnn", "0.70.0+local.1"},
		{"none", nil, "site-packages/ttnn/build/lib", ""},
		{"two", []string{"p/ttnn-1.dist-info", "p/ttnn-2.dist-info"}, "p/ttnn", ""},
		{"another package", []string{"p/ttnn_visualizer-1.dist-info"}, "p/ttnn", ""},
		{"above site-packages", []string{"ttnn-9.dist-info"}, "site-packages/ttnn/build/lib", ""},
		{"a folder with a pattern in its name", []string{"a[b]*?/ttnn-3.dist-info", "ab/ttnn-4.dist-info"}, "a[b]*?/ttnn", "3"},
		{"a backslash", []string{`a\b/ttnn-5.dist-info`}, `a\b/ttnn`, "5"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range append(test.folders, test.library) {
				if err := os.MkdirAll(filepath.Join(dir, f), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if got := proc.Release("", filepath.Join(dir, test.library, "libtt_metal.so")); got != test.want {
				t.Errorf("release %q, want %q", got, test.want)
			}
		})
	}
	for _, path := range []string{"", "libtt_metal.so", "./libtt_metal.so", "/libtt_metal.so"} {
		if got := proc.Release("", path); got != "" {
			t.Errorf("%q is of release %q", path, got)
		}
	}
}

// A library that is written to while it is read is refused or read as it is at some
// moment, in bounded time.
func TestLibraryChangesWhileItIsRead(t *testing.T) {
	whole := fixture.Read(t, fixture.StillOf(t, fixture.LayoutB))
	path := fixture.Write(t, whole)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		random := uint64(1)
		for {
			select {
			case <-stop:
				return
			default:
			}
			random = random*6364136223846793005 + 1442695040888963407
			at := int64(random >> 20 % uint64(len(whole)))
			switch random >> 60 {
			case 0:
				f.Truncate(at)
			case 1, 2, 3:
				f.WriteAt(whole, 0)
			default:
				f.WriteAt([]byte{byte(random), 0xff, 0xff, 0xff, 0x7f, 0, 0, 0}, at)
			}
			runtime.Gosched()
		}
	}()
	good, bad := 0, 0
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); {
		began := time.Now()
		if err := attempt(path); err != nil {
			bad++
		} else {
			good++
		}
		if d := time.Since(began); d > time.Minute {
			t.Errorf("it took %v", d)
		}
	}
	close(stop)
	<-done
	if bad == 0 {
		t.Errorf("%d times it was as if it had not changed", good)
	}
	// Whatever it was, it can be read when it is whole again.
	if _, err := f.WriteAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	if err := attempt(path); err != nil {
		t.Error(err)
	}
}

// The search for a name finds what bytes.Contains finds.
func FuzzContainsName(f *testing.F) {
	name := RuntimeSymbols[0]
	f.Add([]byte(nil), name)
	f.Add([]byte(name), name)
	f.Add([]byte(name[1:]+"\x00"+name), name)
	f.Add([]byte("\x00_ZN1a\x00"+name+"Ev\x00"), name)
	f.Add([]byte(name[:len(name)-1]+"\x00"), name)
	f.Add([]byte("aabaab"), "ab")
	f.Add([]byte("xxxx"), "xx")
	f.Fuzz(func(t *testing.T, names []byte, name string) {
		if name == "" {
			return
		}
		if got, want := containsName(names, name), bytes.Contains(names, []byte(name)); got != want {
			t.Errorf("%q in %q: %v, want %v", name, names, got, want)
		}
	})
}

// LoadedAlike groups all pieces of one copy of a library, even if its data is executable, and rejects the pieces of
// another copy.
func TestPiecesOfACopyAreLoadedAlike(t *testing.T) {
	const bias, other = 0x7f9617c00000, 0x7f9610000000
	l := &Library{segments: []elf.ProgHeader{
		{Type: elf.PT_LOAD, Flags: elf.PF_R, Filesz: 0x77fbf0},
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Off: 0x77fbf0, Vaddr: 0x780bf0, Filesz: 0xf506f0},
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Off: 0x16d02e0, Vaddr: 0x16d22e0, Filesz: 0x3c350},
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Off: 0x170c630, Vaddr: 0x170f630, Filesz: 0x1c300},
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Off: 0x1f2a000, Vaddr: 0x1747000, Filesz: 0x25bd00},
	}}
	piece := func(bias, address, offset uint64) proc.Mapping {
		return proc.Mapping{Base: bias + address - offset, Region: proc.Region{Start: bias + address}}
	}
	for _, at := range [][2]uint64{{0, 0}, {0x780000, 0x77f000}, {0x16d2000, 0x16d0000}, {0x170f000, 0x170c000}, {0x1747000, 0x1f2a000}} {
		if !l.LoadedAlike(piece(bias, 0, 0), piece(bias, at[0], at[1])) {
			t.Errorf("the piece at %#x is of another copy", at[0])
		}
		if l.LoadedAlike(piece(other, 0, 0), piece(bias, at[0], at[1])) {
			t.Errorf("the piece at %#x of another copy is of this one", at[0])
		}
	}
}
