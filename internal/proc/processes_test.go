package proc

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that lives is not taken to have ended where this process may open no more files.
func TestAliveWithoutDescriptors(t *testing.T) {
	pid := uint32(os.Getpid())
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	alive := Alive(pid)
	_, _, err := Name(pid)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if !alive || err == nil || IsGone(err) {
		t.Errorf("it lives: %t; its name: %v", alive, err)
	}
	if Alive(1<<22 + 1) {
		t.Error("a process of a number that none can have lives")
	}
}
