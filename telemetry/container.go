package telemetry

import (
	"regexp"
	"strings"
)

// runtimes are the words by which container runtimes name the control groups of their
// containers, which have ids of 64 hexadecimal digits.
var (
	containerID = regexp.MustCompile(`(?:^|[/:])(?:(docker|crio|libpod|cri-containerd|containerd|nerdctl)[-/:])?(?:conmon-)?([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	podID       = regexp.MustCompile(`(?:^|[/-])pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?(?:/|$)`)
	otherID     = regexp.MustCompile(`/(lxc\.payload|lxc|machine\.slice|garden)[./]([A-Za-z0-9_.-]{1,64})(?:/|$)`)
)

// container is where the control groups of a process say that it runs, or "".
func container(cgroup string) string {
	for l := range strings.Lines(cgroup) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimRight(l, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		path := parts[2]
		pod := podID.FindStringSubmatch(path)
		id := containerID.FindStringSubmatch(path)
		switch {
		case pod != nil && id != nil:
			return "pod " + pod[1][:8] + "/" + id[2][:12]
		case pod != nil:
			return "pod " + pod[1][:8]
		case id != nil && id[1] == "libpod":
			return "podman " + id[2][:12]
		case id != nil && (id[1] == "docker" || id[1] == ""):
			return "docker " + id[2][:12]
		case id != nil:
			return id[1] + " " + id[2][:12]
		}
		if other := otherID.FindStringSubmatch(path); other != nil {
			name := strings.TrimSuffix(strings.TrimPrefix(other[2], "machine-"), ".scope")
			if other[1] == "machine.slice" {
				return "machine " + name
			}
			return strings.TrimSuffix(other[1], ".payload") + " " + name
		}
	}
	return ""
}
