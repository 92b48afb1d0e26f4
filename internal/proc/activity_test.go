package proc

import (
	"bufio"
	"os/exec"
	"testing"
	"time"
)

// What a process did shows, also where the kernel counts no time for it.
func TestActivity(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answers, pid := bufio.NewReader(out), uint32(cmd.Process.Pid)
	echo := func() {
		t.Helper()
		if _, err := in.Write([]byte("word\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := answers.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); Running(pid); {
			if time.Now().After(end) {
				t.Fatal("it does not come to rest")
			}
		}
	}
	echo()
	at, ok := ActivityOf(pid)
	for range 100 { // it can be on its way to rest
		if ok && at.Rests(pid) {
			break
		}
		time.Sleep(time.Millisecond)
		at, ok = ActivityOf(pid)
	}
	if !ok || at.Stops == 0 || !at.Rests(pid) {
		t.Errorf("%+v, %t: at rest %t", at, ok, at.Rests(pid))
	}
	echo()
	if at.Rests(pid) {
		t.Error("it did something, and rests since")
	}
	at.Time, _ = ProcessorTime(pid) // as if that had taken no time
	if at.Rests(pid) {
		t.Error("it did something in no time, and rests since")
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, ok := ActivityOf(pid); ok || at.Rests(pid) || !Running(pid) {
		t.Error("it ended, and its activity is known")
	}
}
