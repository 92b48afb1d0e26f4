package tracer

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
)

// The runtime's throwing functions are instances of a template, which every file has that throws with the same types of
// arguments. The dynamic linker takes the first one that it finds for all of them, the runtime too: that of an
// extension or of the program itself. So the probes of failures go into these files as well.

// maxInterposing bounds the files of a process that are opened to find these functions.
const maxInterposing = 256

// interposing identifies a file, by its base name, that was looked at for a scope. An empty name stands for all files.
type interposing struct {
	name  string
	scope uint32
}

// attachInterposed attaches the probes of failures to the other files that a process maps and that define the same
// functions: once for each set of probes and scope. It opens files, so the caller must not hold t.mu.
func (ar *attacher) attachInterposed(m proc.Mapping) {
	if !ar.interposes(m, interposing{"", ar.scope(m.PID)}) {
		return
	}
	files := 0
	list, err := proc.Loaded(m.PID, func(_ string, id proc.FileID) bool {
		files++
		return id != m.ID && files <= maxInterposing
	})
	if err != nil {
		return // it has ended
	}
	// Those beside the runtime first: the process can fail soon.
	apart := func(o proc.Mapping) int { return strings.Compare(path.Dir(o.Path), path.Dir(m.Path)) }
	slices.SortStableFunc(list, func(x, y proc.Mapping) int {
		return cmp.Compare(min(apart(x)*apart(x), 1), min(apart(y)*apart(y), 1))
	})
	for _, o := range list {
		if err := ar.interpose(m, o); err != nil {
			ar.opts.Notice(fmt.Sprintf("failures that %s throws are not seen: %v", o.Path, err))
		}
	}
}

// interposes reports whether a file is looked at for the first time.
func (ar *attacher) interposes(m proc.Mapping, file interposing) bool {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	a := ar.libraries.attachmentOf(m)
	if a == nil || a.probes == nil || len(a.failureProbes) == 0 || a.probes.interposed[file] {
		return false
	}
	a.probes.interposed[file] = true
	return true
}

// attachmentOf returns the library that a mapping is of, or nil. The caller holds t.mu.
func (lb *libraries) attachmentOf(m proc.Mapping) *attachment {
	lb.indexMu.Lock()
	defer lb.indexMu.Unlock()
	for _, a := range lb.libraries {
		if a.mapped[m.ID] {
			return a
		}
	}
	return nil
}

// interpose attaches the probes of failures of a library to one other file, if that defines some of the functions.
func (ar *attacher) interpose(m, o proc.Mapping) error {
	scope := ar.scope(m.PID)
	file, err := discover.OpenFile(memory.FilesOf(o.PID), o)
	if err != nil {
		return nil // its user serves it, or the process has ended
	}
	defer file.Close()
	name := memory.ProcName(file)
	if !metal.KnowsThrows(name) || !ar.interposes(m, interposing{path.Base(o.Path), scope}) {
		return nil
	}
	lib, err := metal.OpenFile(name, o.Path)
	if err != nil {
		return nil // it defines nothing of the runtime
	}
	defer lib.Close()
	ex, err := link.OpenExecutable(name)
	if err != nil {
		return err
	}
	ar.mu.Lock()
	defer ar.mu.Unlock()
	a := ar.libraries.attachmentOf(m)
	if a == nil || a.probes == nil || a.probes.links[scope] == nil || ar.closed {
		return nil
	}
	var probes []metal.Probe
	for _, p := range a.failureProbes {
		if q, ok := lib.Again(p); ok {
			probes = append(probes, q)
		}
	}
	if len(probes) == 0 {
		return nil
	}
	if err := checkDescriptors(ar.uprobes.descriptors(len(probes)), "attaching to "+o.Path); err != nil {
		return err
	}
	links, err := ar.uprobes.uprobes(ex, probes, a.probes.index, scope)
	if err == nil {
		a.probes.links[scope] = append(a.probes.links[scope], links...)
	}
	return err
}
