package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tt-memtrace/internal/export"
	"tt-memtrace/test/rig"
)

// JAX's plugin has the runtime linked in without symbols. Its process is not traced; every command says so, offers what works, and
// claims nothing about its buffers.
func TestJAXIsNotTraced(t *testing.T) {
	mayTrace(t)
	r := installed(t, rig.JAXRelease)
	const known, remedy = "has the runtime's code, but not its symbols", "--shm shows the totals"

	doctor := begin(t, call{args: []string{"doctor", "--lib", r.Library}}).ends(notSupported)
	contains(t, doctor.out, r.Library+" ", known, remedy)
	if strings.Contains(doctor.out, "its code is in libtt_metal.so") {
		t.Errorf("it looks for the runtime elsewhere:\n%s", doctor.out)
	}

	w, err := r.Start(t.Context(), rig.Options{Cluster: "p150", Script: rig.JAXProgram, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	const compiles = 10 * time.Minute // on a busy machine; a quarter of a minute otherwise
	if _, err := w.Await("held", compiles); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprint(w.PID())

	about := begin(t, call{args: []string{"doctor", "-p", pid}}).ends(notSupported)
	contains(t, about.out, known, remedy)
	status := begin(t, call{args: []string{"status", "-p", pid}}).ends(incomplete)
	contains(t, strings.Join(strings.Fields(status.out), " "), pid+": it uses the runtime and is not traced", known, remedy, "no process is traced")
	if strings.Contains(status.out, "no process uses the runtime") {
		t.Errorf("it reports that nobody uses the runtime:\n%s", status.out)
	}
	inJSON := begin(t, call{args: []string{"status", "--json", "-p", pid}}).ends(incomplete)
	contains(t, inJSON.out, `"not_traced"`, `"exact": false`)
	var shm export.Status
	of := begin(t, call{args: []string{"status", "--json", "--shm", "-p", pid}}).ends(fine)
	if err := json.Unmarshal([]byte(of.out), &shm); err != nil {
		t.Fatal(err)
	}
	if len(shm.Processes) != 1 || len(shm.Processes[0].Chips) != 1 || shm.Processes[0].Chips[0].Memory["dram"].Requested == nil ||
		*shm.Processes[0].Chips[0].Memory["dram"].Requested < 512*512*4 {
		t.Errorf("--shm: %+v", shm.Processes)
	}

	keys, screen, tty := terminal(t)
	top := begin(t, call{tty: tty, args: []string{"-p", pid}, env: environ("XDG_CONFIG_HOME="+t.TempDir(), "TERM=xterm-256color", "LC_ALL=C.UTF-8")})
	screen.await(t, "not traced")
	fmt.Fprint(keys, "q")
	top.end()

	// Its end is the report's, and the log's.
	report, log := begin(t, call{args: []string{"report", "-p", pid}}), begin(t, call{args: []string{"log", "-p", pid}})
	for _, s := range []*session{report, log} {
		s.err.await(t, "not its symbols")
	}
	send(t, w, "end")
	of = report.ends(incomplete)
	contains(t, of.out, "not exact: process "+pid+": it uses the runtime and is not traced", known, remedy)
	if strings.Contains(of.out, "freed\n") || strings.Contains(of.out, "no process used") {
		t.Errorf("a claim about buffers that nobody saw:\n%s", of.out)
	}
	contains(t, log.ends(incomplete).err, known)
}
