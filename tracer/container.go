package tracer

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/prometheus/procfs"

	"tt-memtrace/aggregator"
)

// Describe reads what can be said of a process without a look at its memory. Its
// words are the process's own and untrusted.
func Describe(pid uint32) (aggregator.Process, error) {
	command, started, err := describe(pid)
	if err != nil {
		return aggregator.Process{}, err
	}
	p := aggregator.Process{Started: started, Command: command}
	p.Container, p.InnerPID = placed(pid)
	return p, nil
}

// placed says which container a process is in, and its PID inside its own PID
// namespace; empty and 0 where it is in none that is known, or in ours.
func placed(pid uint32) (container string, inner uint32) {
	if f, err := os.Open(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
		// A path has 4096 bytes at most, but version 1 has a line a controller.
		b, _ := io.ReadAll(io.LimitReader(f, 64<<10))
		f.Close()
		container = containerOf(string(b))
	}
	if p, err := procfs.NewProc(int(pid)); err == nil {
		if st, err := p.NewStatus(); err == nil && len(st.NSpids) > 1 {
			inner = uint32(st.NSpids[len(st.NSpids)-1])
		}
	}
	return container, inner
}

// A container's ID is 64 hex digits, of which its tools show 12.
const (
	idPattern = `([0-9a-f]{12})[0-9a-f]{52}`
	// A pod's UID has underscores in the names of systemd's units.
	podPattern = `pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})`
)

var (
	containerID = regexp.MustCompile(`^(?:([a-z][a-z-]*)-)?` + idPattern + `(?:\.scope|\.service)?$`)
	podUID      = regexp.MustCompile(`^(?:[a-z-]*-)?` + podPattern + `(?:\.slice)?$`)
	lxcName     = regexp.MustCompile(`^lxc\.payload\.([A-Za-z0-9._-]{1,64})$`)
	plainName   = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	nspawnName  = regexp.MustCompile(`^systemd-nspawn@([A-Za-z0-9._-]{1,64})\.service$`)
)

// runtimes are what the units of container runtimes are called.
var runtimes = map[string]string{
	"docker": "docker", "libpod": "podman", "crio": "crio", "cri-containerd": "containerd", "nerdctl": "containerd",
}

// containerOf is the innermost container that the paths of a /proc/PID/cgroup name:
// RUNTIME:ID or kubernetes:POD-UID/ID, or empty. The path is the only thing that
// says so and is not the process's own word.
func containerOf(cgroup string) string {
	var found string
	for line := range strings.Lines(cgroup) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if c := containerInPath(parts[2]); len(c) > len(found) {
			found = c // some controllers know a part only
		}
	}
	return found
}

func containerInPath(path string) string {
	var container, pod, before string
	// Where the runtime's cgroup driver is not the kubelet's, a unit's three parts
	// are one name: SLICE:PREFIX:ID.
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == ':' }) {
		if m := podUID.FindStringSubmatch(name); m != nil {
			pod = strings.ReplaceAll(m[1], "_", "-")
			container = "kubernetes:" + pod
		} else if m := containerID.FindStringSubmatch(name); m != nil {
			runtime, known := runtimes[cmp.Or(m[1], before)]
			switch {
			case strings.HasSuffix(m[1], "conmon"):
				// What watches a container is outside of it.
			case pod != "":
				container = "kubernetes:" + pod + "/" + m[2]
			case known:
				container = runtime + ":" + m[2]
			case m[1] == "" && before == "libpod_parent":
				container = "podman:" + m[2]
			case m[1] == "" && !strings.HasSuffix(name, ".service"):
				container = "container:" + m[2]
			}
		} else if m := lxcName.FindStringSubmatch(name); m != nil {
			container, pod = "lxc:"+m[1], ""
		} else if before == "lxc" && plainName.MatchString(name) {
			container, pod = "lxc:"+name, ""
		} else if m := nspawnName.FindStringSubmatch(name); m != nil {
			container, pod = "nspawn:"+m[1], ""
		}
		before = name
	}
	return container
}
