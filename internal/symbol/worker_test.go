package symbol

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asked asks about the code of a file as a process does, through a worker.
func asked(t *testing.T, files *Files, path string) (a answer, ok bool) {
	t.Helper()
	p := NewProcess(uint32(os.Getpid()), files, nil)
	file, _ := files.of(mapped(t, path))
	return p.ask(askName, &mapping{start: 0, end: 1 << 40, file: file}, 0x1008)
}

// answered asks until there is an answer: a worker takes a while to start.
func answered(t *testing.T, ask func() (answer, bool)) answer {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if a, ok := ask(); ok {
			return a
		}
		if time.Now().After(until) {
			t.Fatal("no answer")
		}
	}
}

// debugInfo are sections of debug information of one unit that has the code at 0x1000.
func debugInfo(line []byte) []section {
	abbrev := []byte{1, 0x11, 0, 0x11, 1, 0x12, 7, 0x10, 0x17, 0, 0, 0}
	unit := []byte{4, 0, 0, 0, 0, 0, 8, 1} // version 4, abbreviations at 0, addresses of 8 bytes
	unit = binary.LittleEndian.AppendUint64(unit, 0x1000)
	unit = binary.LittleEndian.AppendUint64(unit, 0x100)
	unit = binary.LittleEndian.AppendUint32(unit, 0)
	info := append(binary.LittleEndian.AppendUint32(nil, uint32(len(unit))), unit...)
	return []section{{name: ".debug_abbrev", kind: elf.SHT_PROGBITS, content: abbrev}, {name: ".debug_info", kind: elf.SHT_PROGBITS, content: info},
		{name: ".debug_line", kind: elf.SHT_PROGBITS, content: line}, {name: ".debug_str", kind: elf.SHT_PROGBITS, content: []byte{0}}}
}

// lineBomb claims to have so many directories that their table would take gigabytes.
func lineBomb(count uint64) []byte {
	header := []byte{5, 0, 8, 0, 0xff, 0xff, 0, 0, 1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 8}
	header = binary.AppendUvarint(header, count)
	header = append(header, make([]byte, 1<<16)...)
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(header))), header...)
}

// packed is zeros, compressed.
func packed(n int) []byte {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, _ = w.Write(make([]byte, n))
	_ = w.Close()
	return b.Bytes()
}

func compressed(declared uint64) []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: declared, Addralign: 1})
	return append(b.Bytes(), packed(100<<20)...)
}

// Whatever a file claims, this process takes next to no memory for it, the worker takes no
// more than it may, and the next file is named all the same.
func TestHostileFiles(t *testing.T) {
	symbols := symtab(elf.SHT_SYMTAB, 1, function{"victim", 0x1000, 0x100, elf.STT_FUNC})
	with := func(more ...section) string { return makeELF(t, append(symbols[:2:2], more...)...) }
	const huge = 1 << 40
	cases := map[string]string{
		"debug information with a table of gigabytes":  with(debugInfo(lineBomb(1 << 28))...),
		"debug information with a table beyond memory": with(debugInfo(lineBomb(1 << 50))...),
		"compressed, of 1 TiB":                         with(section{name: ".debug_info", kind: elf.SHT_PROGBITS, flags: elf.SHF_COMPRESSED, content: compressed(huge)}),
		"compressed, and more than it says":            with(section{name: ".debug_info", kind: elf.SHT_PROGBITS, flags: elf.SHF_COMPRESSED, content: compressed(16 << 20)}),
		"compressed in the old way":                    with(section{name: ".zdebug_info", kind: elf.SHT_PROGBITS, content: append(binary.BigEndian.AppendUint64([]byte("ZLIB"), huge), packed(100<<20)...)}),
		"sparse debug information":                     with(section{name: ".debug_info", kind: elf.SHT_PROGBITS, size: huge}),
		"sparse unwind tables":                         with(section{name: ".eh_frame_hdr", kind: elf.SHT_PROGBITS, size: huge}, section{name: ".eh_frame", kind: elf.SHT_PROGBITS, size: huge}),
		"sparse names of sections":                     makeELF(t, section{name: strings.Repeat("x", 8<<20), kind: elf.SHT_PROGBITS}),
		"sparse symbols":                               makeELF(t, section{name: ".symtab", kind: elf.SHT_SYMTAB, size: huge, link: 2}, section{name: ".strtab", kind: elf.SHT_STRTAB, size: huge}),
		"many symbols":                                 makeELF(t, section{name: ".symtab", kind: elf.SHT_SYMTAB, size: 31 << 20, link: 2}, section{name: ".strtab", kind: elf.SHT_STRTAB, size: 255 << 20}),
		"much debug information":                       with(section{name: ".debug_info", kind: elf.SHT_PROGBITS, size: 100 << 20}),
	}
	good := with()
	files := NewFiles()
	defer files.Close()
	named := func() (answer, bool) {
		a, ok := asked(t, files, good)
		return a, ok && a.Function == "victim"
	}
	answered(t, named)
	for name, path := range cases {
		t.Run(name, func(t *testing.T) {
			before := resident(t)
			asked(t, files, path)
			if grown := resident(t) - before; grown > 32<<20 {
				t.Errorf("this process has grown by %d bytes", grown)
			}
			answered(t, named)
		})
	}
	files.Close()
	var of unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &of); err != nil {
		t.Fatal(err)
	}
	t.Logf("the largest worker took %d MiB", of.Maxrss>>10)
	if of.Maxrss > (maxData+(64<<20))>>10 {
		t.Errorf("a worker took %d KiB", of.Maxrss)
	}
}

// resident is the memory of this process, bytes.
func resident(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// A FIFO, a directory or a device where a file was, or a perf map would be, is not waited for.
func TestNoFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	files := NewFiles()
	defer files.Close()
	for _, path := range []string{fifo, t.TempDir(), "/dev/zero"} {
		a := answered(t, func() (answer, bool) { return asked(t, files, path) })
		if file, _ := files.of(mapped(t, path)); a.Known || file.refused.Load() {
			t.Errorf("%s: %+v, the worker failed at it: %v", path, a, file.refused.Load())
		}
	}
	perf := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	if err := unix.Mkfifo(perf, 0o666); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(perf)
	p := NewProcess(uint32(os.Getpid()), files, nil)
	if a := answered(t, func() (answer, bool) { return p.ask(askPerf, &mapping{}, 0x1000) }); a.Known || a.Later {
		t.Errorf("%+v", a)
	}
}

// Nobody waits for a worker that hangs for longer than a moment, once, and not for its end.
func TestAWorkerThatHangs(t *testing.T) {
	defer func(d time.Duration) { maxAnswer = d }(maxAnswer)
	maxAnswer = time.Hour // it is not what ends the waiting
	path := makeELF(t, symtab(elf.SHT_SYMTAB, 1, function{"f", 0x1000, 0x100, elf.STT_FUNC})...)
	files := NewFiles()
	answered(t, func() (answer, bool) { return asked(t, files, path) })
	u, err := files.users.of(uint32(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if err := u.worker.Load().command.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, ok := asked(t, files, path); ok {
		t.Error("it answers")
	}
	if u.credit > 0 {
		t.Errorf("others may wait for %v after the first", u.credit)
	}
	began := time.Now()
	for range 3 * maxRequests {
		if _, ok := asked(t, files, path); ok {
			t.Fatal("it answers")
		}
	}
	if waited := time.Since(began); waited > time.Minute { // each for as long as the first: more than six
		t.Errorf("the others wait for %v", waited)
	}
	files.Close()
}

// A perf map is read once a second at most, and not as a whole where it is too long.
func TestPerfMapsAreBounded(t *testing.T) {
	perf := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	defer os.Remove(perf)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(perf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pid := uint32(os.Getpid())
	l := newLibrarian()
	if name, later := l.perfName(pid, 0x1000); name != "" || later {
		t.Errorf("without a map: %q, later %v", name, later)
	}
	write("1000 10 first\n")
	l.perfs[pid].at = time.Now().Add(time.Hour)
	if name, _ := l.perfName(pid, 0x1000); name != "" {
		t.Error("it is read again without a pause")
	}
	l.perfs[pid].at = time.Now().Add(-perfEvery)
	if name, later := l.perfName(pid, 0x1008); name != "first" || later {
		t.Errorf("%q, later %v", name, later)
	}
	write("1000 10 first\n2000 10 second\n")
	if name, later := l.perfName(pid, 0x2000); name != "" || !later {
		t.Errorf("%q, later %v", name, later)
	}
	write(strings.Repeat("1 1 a\n", 4<<20))
	l.perfs[pid].at = time.Time{}
	l.perfName(pid, 1)
	if n := len(l.perfs[pid].list); n != maxPerfLines {
		t.Errorf("%d lines", n)
	}
	for other := range uint32(3 * maxPerfs) {
		l.perfName(1<<30+other, 1)
	}
	if len(l.perfs) > maxPerfs {
		t.Errorf("%d maps are kept", len(l.perfs))
	}
}

// What a worker knows is bounded: it forgets, and reads again.
func TestAWorkerForgets(t *testing.T) {
	path := makeELF(t, symtab(elf.SHT_SYMTAB, 1, function{"f", 0x1000, 0x100, elf.STT_FUNC})...)
	l := newLibrarian()
	for range 3 {
		if a := about(t, l, askName, path, 0x1000); a.Function != "f" {
			t.Errorf("%+v", a)
		}
		l.parsed = maxParsed + 1
		about(t, l, askPerf, path, 0)
		if l.parsed != 0 || l.files[fileID{mapped(t, path).Dev, mapped(t, path).Inode}].symbols != nil {
			t.Error("it keeps what it knew")
		}
	}
}

func TestRulesAreSentWhole(t *testing.T) {
	u := rule{register: 7, offset: -16, plt: true, last: true}
	for i := range u.saved {
		u.saved[i] = recovered{byte(i), int64(-8 * i)}
	}
	b, err := u.MarshalBinary()
	var got rule
	if err2 := got.UnmarshalBinary(b); err != nil || err2 != nil || got != u {
		t.Errorf("%+v, %v, %v", got, err, err2)
	}
	if err := got.UnmarshalBinary(b[:20]); err == nil {
		t.Error("a part of a rule counts as one")
	}
}

func FuzzPerfMap(f *testing.F) {
	f.Add("7f10 10 py::f:/m.py\nnonsense\n\n7f00 8 a name\nffffffffffffffff 2 too far\nzz 1 x\n")
	f.Fuzz(func(t *testing.T, text string) {
		list := parsePerf([]byte(text))
		for i, e := range list {
			if e.start >= e.end || i > 0 && e.start < list[i-1].start {
				t.Errorf("%+v", list)
			}
		}
	})
}
