package cli

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// In a PID namespace of its own nothing of the host could be found: that is said, and
// no empty accounts are shown as if they were all there is.
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
