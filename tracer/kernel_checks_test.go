package tracer

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// What a kernel lacks is named, with the way out; what may not be found out is not said to be missing.
func TestHostKernelError(t *testing.T) {
	old := []kernelFeature{{"one", nil, "x"}, {"two", unix.EPERM, "x"}, {"three", ebpf.ErrNotSupported, "Linux 9 is needed"}, {"four", ebpf.ErrNotSupported, "y"}}
	err := firstLacking(old)
	if !errors.Is(err, ErrKernel) {
		t.Fatal(err)
	}
	for _, part := range []string{"three", "Linux 9 is needed", "--sample"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %q", part, err)
		}
	}
	if err := firstLacking(old[:2]); err != nil {
		t.Error(err)
	}
}
