package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"text/tabwriter"

	"tt-memtrace/internal/proc"
	"tt-memtrace/internal/sampler"
	"tt-memtrace/tracer"
)

// abilities are what works on this host for this user, and what would make the rest work.
type abilities struct {
	// User is the user that this program runs as.
	User string `json:"user"`
	// WithProbes is what can be traced, WithoutProbes what can be sampled.
	WithProbes    ability `json:"with_probes"`
	WithoutProbes ability `json:"without_probes"`
	// Remedy is the command that makes the rest work; null if everything works, or no command helps.
	Remedy *string `json:"remedy"`
}

// ability says whether processes can be traced or sampled.
type ability struct {
	OK bool `json:"ok"`
	// Detail says which processes can be, or why none can.
	Detail string `json:"detail"`
}

const allProcesses = "all processes of this host"

// seesAll reports whether this program sees all processes of this host, also other users'.
func seesAll() bool { return sampler.MayReadAll() && tracer.InHostNamespaces() }

// findAbilities returns the abilities on this host.
func findAbilities() abilities {
	name := fmt.Sprint(os.Geteuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	a := newAbilities(name, tracer.Possible(), sampler.MayReadAll(), sampler.PtraceScope())
	if err := proc.CheckMounted(); err != nil {
		a.WithoutProbes = ability{false, err.Error()}
	}
	return a
}

// newAbilities returns the abilities of a user, from why probes are not possible (nil: they are), whether the user may read all
// processes, and Yama's ptrace_scope.
func newAbilities(user string, probes error, readsAll bool, scope int) abilities {
	a := abilities{User: user, WithProbes: ability{true, allProcesses}}
	if probes != nil {
		a.WithProbes = ability{false, inShort(probes)}
	}
	const setting = "kernel.yama.ptrace_scope is %d"
	all, own := allProcesses, "the user's own processes"
	switch {
	case errors.Is(probes, tracer.ErrUserNamespace):
		all, own = "all processes of this user namespace", "the user's own processes in this user namespace"
	case errors.Is(probes, tracer.ErrPIDNamespace):
		all = "all processes of this PID namespace"
	}
	switch {
	case scope > 2 || scope > 1 && !readsAll:
		a.WithoutProbes = ability{false, fmt.Sprintf("no process may be read: "+setting, scope)}
	case readsAll:
		a.WithoutProbes = ability{true, all + ": --sample"}
	case scope == 1:
		a.WithoutProbes = ability{true, fmt.Sprintf("commands that it starts, as "+setting+": tt-memtrace -- CMD", scope)}
	default:
		a.WithoutProbes = ability{true, own + ": --sample, or tt-memtrace -- CMD"}
	}
	var remedy string
	switch {
	case probes == nil, errors.Is(probes, tracer.ErrPIDNamespace), errors.Is(probes, tracer.ErrUserNamespace):
		// Nothing is missing, or the container has to be started in another way: Detail says how.
	case errors.Is(probes, proc.ErrPermission):
		remedy = tracer.GrantLine()
	case !readsAll && scope < 3: // no command makes another kernel
		remedy = "sudo tt-memtrace --sample"
	}
	a.Remedy = orNull(remedy)
	return a
}

func (a *abilities) print(w io.Writer) {
	fmt.Fprintf(w, "What works now, for user %s\n", a.User)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, one := range []struct {
		name string
		ability
	}{{"with probes", a.WithProbes}, {"without probes", a.WithoutProbes}} {
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", mark(one.OK), one.name, one.Detail)
	}
	tw.Flush()
	if a.Remedy != nil {
		fmt.Fprintf(w, "  for the rest: %s\n", *a.Remedy)
	}
	fmt.Fprintln(w)
}
