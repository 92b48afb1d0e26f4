package tracer

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tt-memtrace/internal/proc"
)

// Right is a capability that tracing needs, and what for.
type Right struct {
	Capability string
	For        string
	Held       bool
}

// Rights lists the capabilities that tracing needs, and whether this process holds them.
func Rights() []Right {
	// CAP_SYS_ADMIN contains the first two, CAP_DAC_OVERRIDE the last.
	set := cap.GetProc()
	held := func(values ...cap.Value) bool {
		for _, v := range values {
			if ok, err := set.GetFlag(cap.Effective, v); err == nil && ok {
				return true
			}
		}
		return false
	}
	rights := []Right{
		{"cap_bpf", "loading the BPF programs and maps", held(cap.BPF, cap.SYS_ADMIN)},
		{"cap_perfmon", "attaching probes, seeing which processes map the runtime", held(cap.PERFMON, cap.SYS_ADMIN)},
		{"cap_sys_ptrace", "reading what processes of other users map, and their devices' properties", held(cap.SYS_PTRACE)},
		// Uprobes name their file by path; /proc/PID/root opens that path, but does not give access to closed folders
		// on it.
		{"cap_dac_read_search", "opening their libraries below folders that only they can enter, such as a home", held(cap.DAC_READ_SEARCH, cap.DAC_OVERRIDE)},
	}
	if kernelLacks().MultiUprobes {
		rights = append(rights, Right{"cap_sys_admin", "attaching probes, which take perf events before Linux 6.6", held(cap.SYS_ADMIN)})
	}
	return rights
}

// CheckRights returns nil, or an error that names the missing capabilities and how to get them. Rights says what each
// is for.
func CheckRights() error {
	// In a user namespace all rights may seem held, and granting them to a file changes nothing.
	if err := checkUserNamespace(); err != nil {
		return err
	}
	var missing []string
	for _, r := range Rights() {
		if !r.Held {
			missing = append(missing, r.Capability)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: missing %s\nrun it as root, or grant them once: %s",
		proc.ErrPermission, strings.Join(missing, ", "), GrantLine())
}

// GrantLine is the command that grants this program its rights.
func GrantLine() string {
	self, err := os.Executable()
	if err != nil {
		self = "tt-memtrace"
	}
	var names []string
	for _, r := range Rights() {
		names = append(names, r.Capability)
	}
	return fmt.Sprintf("sudo setcap %s+ep %s", strings.Join(names, ","), quoted(self))
}

var plain = regexp.MustCompile(`^[\w./+:@%,=-]+$`)

// quoted quotes a text for a shell.
func quoted(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
