// Package cgroup finds the container of a process from its control groups.
package cgroup

import (
	"cmp"
	"regexp"
	"strings"
	"sync"
)

// Container is one that a process is in. The zero value is an unknown one.
type Container struct {
	// Runtime is what runs it, "container" where that is not known. It is user-UID where only
	// that user says so: the Name is what they call it, and ID and Pod are "".
	Runtime string
	// ID is the first 12 digits of its ID, as its tools show them, and Name what runtimes
	// without IDs call it; Pod is the UID of its Kubernetes pod, where ID may be "".
	ID, Name, Pod string
}

// String is RUNTIME:ID or kubernetes:POD-UID/ID, or empty.
func (c Container) String() string {
	switch {
	case c == Container{}:
		return ""
	case c.Pod != "" && c.ID != "":
		return c.Runtime + ":" + c.Pod + "/" + c.ID
	}
	return c.Runtime + ":" + cmp.Or(c.Pod, c.ID, c.Name)
}

// Tenant is the container, or the user who alone says that it is one; "" for none.
func (c Container) Tenant() string {
	if c.claimed() {
		return "user " + strings.TrimPrefix(c.Runtime, claim)
	}
	return c.String()
}

// A container's ID is 64 hex digits, of which its tools show 12.
const (
	idPattern = `([0-9a-f]{12})[0-9a-f]{52}`
	// A pod's UID has underscores in the names of systemd's units.
	podPattern = `pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})`
)

var (
	containerID = compiled(`^(?:([a-z][a-z-]*)-)?` + idPattern + `(?:\.scope|\.service)?$`)
	podUID      = compiled(`^(?:[a-z-]*-)?` + podPattern + `(?:\.slice)?$`)
	lxcName     = compiled(`^lxc\.payload\.([A-Za-z0-9._-]{1,64})$`)
	// A user makes what is below their slice or their service manager.
	userSlice   = compiled(`(?:^|/)(?:(?:user\.slice|\.\.)/user-([1-9][0-9]{0,9})\.slice|user@([1-9][0-9]{0,9})\.service)(?:/|$)`)
	plainName   = compiled(`^[A-Za-z0-9._-]{1,64}$`)
	nspawnName  = compiled(`^systemd-nspawn@([A-Za-z0-9._-]{1,64})\.service$`)
	machineName = compiled(`^machine-([A-Za-z0-9._-]{1,64})\.scope$`)
)

// compiled is a pattern that is compiled when it is used: the program also starts to read memory only, as several processes.
func compiled(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// runtimes are the names of the units of container runtimes.
var runtimes = map[string]string{
	"docker": "docker", "libpod": "podman", "crio": "crio", "cri-containerd": "containerd", "nerdctl": "containerd",
}

// Parse finds the innermost container that the paths of a /proc/PID/cgroup name. The path is
// the only thing that says so and is not the process's own word; except below a user's slice,
// where anybody can make a group with the name of any container.
func Parse(cgroup string) Container {
	var found Container
	for line := range strings.Lines(cgroup) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		c := inPath(parts[2])
		if claimed, before := c.claimed(), found.claimed(); c == (Container{}) || claimed && !before && found != (Container{}) {
			continue
		} else if before && !claimed || len(c.String()) > len(found.String()) {
			found = c // some controllers know a part only
		}
	}
	return found
}

// claimed is whether only a user says that this is a container.
func (c Container) claimed() bool { return strings.HasPrefix(c.Runtime, claim) }

const claim = "user-" // before the user's number

func inPath(path string) Container {
	m := userSlice().FindStringSubmatchIndex(path)
	if m == nil {
		return named(path)
	}
	if outside := named(path[:m[0]]); outside != (Container{}) {
		return outside
	}
	c := named(path[m[1]:])
	if c == (Container{}) {
		return c
	}
	group := max(m[2], m[4]) // the other one is -1
	user := path[group:max(m[3], m[5])]
	return Container{Runtime: claim + user, Name: strings.ReplaceAll(c.String(), ":", "/")}
}

// named is the innermost container that the groups of a path are named after.
func named(path string) Container {
	var c Container
	var before string
	// If the runtime's cgroup driver is not the kubelet's, a unit's three parts
	// are one name: SLICE:PREFIX:ID.
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == ':' }) {
		if m := podUID().FindStringSubmatch(name); m != nil {
			c = Container{Runtime: "kubernetes", Pod: strings.ReplaceAll(m[1], "_", "-")}
		} else if m := containerID().FindStringSubmatch(name); m != nil {
			runtime, known := runtimes[cmp.Or(m[1], before)]
			switch {
			case strings.HasSuffix(m[1], "conmon"):
				// What watches a container is outside of it.
			case c.Pod != "":
				c.ID = m[2]
			case known:
				c = Container{Runtime: runtime, ID: m[2]}
			case m[1] == "" && before == "libpod_parent":
				c = Container{Runtime: "podman", ID: m[2]}
			case m[1] == "" && !strings.HasSuffix(name, ".service"):
				c = Container{Runtime: "container", ID: m[2]}
			}
		} else if m := lxcName().FindStringSubmatch(name); m != nil {
			c = Container{Runtime: "lxc", Name: m[1]}
		} else if (before == "lxc" || before == "garden") && plainName().MatchString(name) {
			c = Container{Runtime: before, Name: name}
		} else if m := nspawnName().FindStringSubmatch(name); m != nil {
			c = Container{Runtime: "nspawn", Name: m[1]}
		} else if m := machineName().FindStringSubmatch(name); m != nil && before == "machine.slice" {
			c = Container{Runtime: "machine", Name: m[1]}
		}
		before = name
	}
	return c
}
