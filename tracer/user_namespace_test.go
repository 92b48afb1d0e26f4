package tracer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tt-memtrace/internal/proc"
)

// The namespace is the reason only where BPF is not permitted in it: a host can delegate that.
func TestUserNamespaceError(t *testing.T) {
	const own = initialUserNamespace + 1
	for _, c := range []struct {
		namespace uint64
		creating  error
		refused   bool
		says      string
	}{
		{initialUserNamespace, nil, false, "the host's"},
		{initialUserNamespace, unix.EPERM, false, "the host's"}, // then rights are missing
		{own, fmt.Errorf("map create: %w", unix.EPERM), true, "not the host's: "},
		{own, nil, false, "not the host's, but it allows"},
		{own, ebpf.ErrNotSupported, false, "not the host's, but"}, // the kernel is the reason
	} {
		err := userNamespaceError(c.namespace, c.creating)
		if (err != nil) != c.refused || err != nil && (!errors.Is(err, proc.ErrPermission) || !errors.Is(err, ErrUserNamespace)) {
			t.Errorf("%+v: %v", c, err)
		}
		if check := describeUserNamespace(c.namespace, err); check.OK == c.refused || !strings.HasPrefix(check.Detail, c.says) {
			t.Errorf("%+v: %+v", c, check)
		}
	}
}

// Root of a user namespace holds all capabilities and is refused, with the reason.
func TestRightsInAUserNamespace(t *testing.T) {
	if userNamespace() != initialUserNamespace {
		t.Skip("this is one already")
	}
	cmd := helper("user namespace")
	id := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: id, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Skipf("no user namespace can be made: %v", err)
	}
	if err != nil {
		t.Error(err)
	}
}

func helpUserNamespace([]string) error {
	for _, r := range Rights() {
		if !r.Held {
			return fmt.Errorf("root of a user namespace lacks %s", r.Capability)
		}
	}
	_, loading := New(Options{})
	for what, err := range map[string]error{"CheckRights": CheckRights(), "Possible": Possible(), "New": loading} {
		if !errors.Is(err, ErrUserNamespace) || !errors.Is(err, proc.ErrPermission) || strings.Contains(err.Error(), "setcap") {
			return fmt.Errorf("%s: %v", what, err)
		}
	}
	return nil
}
