package main

import (
	"errors"
	"fmt"
	"testing"

	"tt-memtrace/internal/proc"
)

// Why a process can be neither probed nor sampled, and what to do, is each said once.
func TestNeitherProbedNorSampled(t *testing.T) {
	denied := fmt.Errorf("PID 7: %w: denied\nrun it unconfined", proc.ErrPermission)
	for _, c := range []struct {
		probes, sampling error
		want             string
	}{
		{denied, denied, "PID 7: not permitted: denied\nrun it unconfined"},
		{errors.New("no BPF\nrun it as root\nor else"), errors.New("PID 7: no\nrun it as root"), "no BPF\nrun it as root\nor else\nnor can it be sampled: PID 7: no"},
		{errors.New("no BPF"), denied, "no BPF\nnor can it be sampled: PID 7: not permitted: denied\nrun it unconfined"},
	} {
		err := neither(c.probes, c.sampling)
		if err.Error() != c.want {
			t.Errorf("%q, want %q", err, c.want)
		}
		if errors.Is(err, proc.ErrPermission) != errors.Is(errors.Join(c.probes, c.sampling), proc.ErrPermission) {
			t.Errorf("the exit code of %q is lost", err)
		}
	}
}
