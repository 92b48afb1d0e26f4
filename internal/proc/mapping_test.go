package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestMappingsAreTakenApart(t *testing.T) {
	for line, want := range map[string]mapping{
		"7f10a0000000-7f10a0021000 rw-p 00000000 00:00 0 ":                                     {Region: Region{0x7f10a0000000, 0x7f10a0021000}, perms: [4]byte([]byte("rw-p"))},
		"7f10a0000000-7f10a0021000 r-xp 00123000 fe:01 1234                       /a/lib x.so": {Region: Region{0x7f10a0000000, 0x7f10a0021000}, offset: 0x123000, id: FileID{0xfe01, 1234}, perms: [4]byte([]byte("r-xp")), path: []byte("/a/lib x.so")},
		"55d0-55d1 rw-p 00000000 00:00 0                          [heap]":                      {Region: Region{0x55d0, 0x55d1}, perms: [4]byte([]byte("rw-p")), path: []byte("[heap]")},
		"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]":  {Region: Region{0xffffffffff600000, 0xffffffffff601000}, perms: [4]byte([]byte("--xp")), path: []byte("[vsyscall]")},
		"1000-2000 r--s 00000000 00:1f 18446744073709551615 /memfd:libtt_metal.so (deleted)":   {Region: Region{0x1000, 0x2000}, id: FileID{0x1f, 1<<64 - 1}, perms: [4]byte([]byte("r--s")), path: []byte("/memfd:libtt_metal.so (deleted)")},
	} {
		if got, ok := parseMapping([]byte(line)); !ok || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q is %+v, %t, not %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{"", "x", "1-2 rw-p 0 0:0", "1 rw-p 0 0:0 0", "1-2 rw 0 0:0 0", "1-2 rw-p 0 00 0", "1-g rw-p 0 0:0 0", "1-2 rw-p 0 0:0 z /a"} {
		if got, ok := parseMapping([]byte(line)); ok {
			t.Errorf("%q is read as %+v", line, got)
		}
	}
}

// lines yields the same line, many times.
type lines struct {
	line string
	left int
	rest string
}

func (l *lines) Read(b []byte) (int, error) {
	if l.rest == "" {
		if l.left == 0 {
			return 0, io.EOF
		}
		l.left--
		l.rest = l.line
	}
	n := copy(b, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// However many mappings a process has, none is kept that nobody asked for, and its writable
// memory is listed up to a limit.
func TestManyMappings(t *testing.T) {
	const many = 65530
	line := "7f10a0000000-7f10a0021000 rw-p 00000000 fe:01 1234                       /a/" + strings.Repeat("long/", 200) + "\n"
	if allocs := testing.AllocsPerRun(1, func() {
		n := 0
		if err := readMappings(&lines{line: line, left: many}, func(*mapping) bool { n++; return true }); err != nil || n != many {
			t.Errorf("%d of %d mappings, %v", n, many, err)
		}
	}); allocs > 100 {
		t.Errorf("reading %d mappings allocates %v times", many, allocs)
	}
	if list, _, err := writable(&lines{line: line, left: many}); len(list) != many || err != nil {
		t.Errorf("%d regions of %d, %v", len(list), many, err)
	}
	if list, _, err := writable(&lines{line: line, left: maxRegions + 1}); list != nil || err == nil {
		t.Errorf("%d regions of more than are kept, %v", len(list), err)
	}
	tooLong := readMappings(strings.NewReader("1-2 rw-p 0 0:0 0 "+strings.Repeat("x", 1<<20)), func(*mapping) bool { return true })
	if tooLong == nil || errors.Is(tooLong, io.EOF) {
		t.Errorf("a line without an end: %v", tooLong)
	}
}

// A command line of megabytes is cut to its beginning, and only the wanted variable of an environment of megabytes is
// kept.
func TestLongCommandLine(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	args := []string{"-c", "echo runs; read line"}
	for range 15 {
		args = append(args, long)
	}
	c := exec.Command("/bin/sh", args...)
	c.Env = append(os.Environ(), "A="+long, "B="+long+"WANTED=0", "WANTED=1", "WANTED_NOT=2")
	in, err := c.StdinPipe()
	out, failed := c.StdoutPipe()
	if err = errors.Join(err, failed); err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer in.Close()
	// Before it runs it has neither.
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := uint32(c.Process.Pid)
	words, err := Arguments(pid)
	command := strings.Join(words, " ")
	if err != nil || !strings.Contains(command, "sh -c echo runs; read line xxx") || len(command) > maxArguments+len("…") || !strings.HasSuffix(command, "x…") {
		t.Errorf("%d bytes: %.40q, %v", len(command), command, err)
	}
	for name, want := range map[string]string{"WANTED": "1", "WANTED_NOT": "2", "WANT": "", "ANTED": ""} {
		if got := Environment(pid, name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
}
