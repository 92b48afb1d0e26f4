package cli

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// A separate PID namespace hides the host's processes. tt-memtrace reports that as an error instead of showing empty
// accounts.
func TestPIDNamespaceOfItsOwn(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	for _, args := range [][]string{{"status", "--json"}, {"exporter", "--listen", "127.0.0.1:0"}, {"status", "--probes", "--", "true"}} {
		c := exec.Command(unshare, append([]string{"--pid", "--fork", "--kill-child", "--mount-proc", "--", tool}, args...)...)
		var out, said strings.Builder
		c.Stdout, c.Stderr = &out, &said
		err := c.Run()
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != notPermitted {
			t.Errorf("%v: %v, want exit code %d", args, err, notPermitted)
		}
		if out.String() != "" || !strings.Contains(said.String(), "PID namespace") || !strings.Contains(said.String(), "--pid=host") {
			t.Errorf("%v printed %q and said %q", args, &out, &said)
		}
	}
}

// What is seen there without probes is marked: others may use the same chips. And where /proc shows other processes than system
// calls find, no command shows that there are none.
func TestSamplingInAPIDNamespaceOfItsOwn(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	in := func(args ...string) *session {
		return begin(t, call{program: unshare, args: append([]string{"--pid", "--fork", "--kill-child"}, args...)})
	}
	for _, how := range []string{"--sample", "--shm"} {
		contains(t, in("--mount-proc", "--", tool, "status", how, "--json").ends(fine).out, `"exact": false`, `"pid_namespace"`)
		r := in("--", tool, "status", how, "--json").ends(failed)
		if contains(t, r.err, "/proc is not mounted, or shows another PID namespace"); r.out != "" {
			t.Errorf("%s printed %q", how, r.out)
		}
	}
	contains(t, in("--mount", "--", "sh", "-c", "umount -l /proc; exec "+tool+" status").ends(failed).err, "/proc is not mounted")
}

// In a time namespace, events would be dated by another clock than what they are compared with: processes that ended would stay.
func TestTimeNamespaceOfItsOwn(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	in := func(offset string, args ...string) *session {
		return begin(t, call{program: unshare, args: append([]string{"--time", "--monotonic", offset, "--boottime", offset, "--fork", "--kill-child", "--"}, args...)})
	}
	if in("1000", "true").end().code != fine {
		t.Skip("no time namespace can be made here")
	}
	r := in("1000", tool, "status", "--probes", "--json").ends(failed)
	if contains(t, r.err, "time namespace is not the host's"); r.out != "" {
		t.Errorf("it printed %q", r.out)
	}
	contains(t, in("1000", tool, "status", "--", "true").ends(fine).err, "sampling every", "time namespace")
	in("0", tool, "status", "--probes", "--", "true").ends(fine)
	contains(t, in("1000", tool, "doctor").end().out, "not the host's clock")
}

// Root of a user namespace, as in a rootless container, has all capabilities, and none that count: doctor says the
// same as the commands that trace, and what works in their place. What it starts is sampled.
func TestUserNamespaceOfItsOwn(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(unshare, "--user", "--map-root-user", "true").CombinedOutput(); err != nil {
		t.Skipf("no user namespace can be made here: %v: %s", err, out)
	}
	in := func(args ...string) *session {
		return begin(t, call{program: unshare, args: append([]string{"--user", "--map-root-user", "--", tool}, args...)})
	}
	for _, args := range [][]string{{"status", "--json"}, {"log"}, {"exporter", "--listen", "127.0.0.1:0"}, {"status", "--probes", "--", "true"}, {"doctor"}} {
		r := in(args...).ends(notPermitted)
		contains(t, r.err, "user namespace", "run it on the host")
		if strings.Contains(r.err, "MEMLOCK") || strings.Contains(r.err, "setcap") {
			t.Errorf("%v: %v", args, r)
		}
		if args[0] != "doctor" {
			if r.out != "" {
				t.Errorf("%v printed %q", args, r.out)
			}
			continue
		}
		contains(t, r.out, "✗  with probes     not permitted: this user namespace is not the host's", "✓  without probes  all processes of this user namespace: --sample",
			"✗  user namespace ", "✗ not ready for probes: not permitted: this user namespace")
	}
	contains(t, in("status", "--", "true").ends(fine).err, "sampling every", "user namespace")
	// It has the capabilities that reading a process takes: it is not sent for them.
	for _, args := range [][]string{{"status", "--sample", "-p", "1"}, {"doctor", "-p", "1"}} {
		r := in(args...).ends(notPermitted)
		if strings.Count(r.err, "not permitted") != 1 || strings.Contains(r.err, "setcap") {
			t.Errorf("%v: %v", args, r)
		}
		contains(t, r.err, "count only in this user namespace", "run it on the host")
	}
}
