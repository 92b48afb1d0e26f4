package metal

import (
	"fmt"
	"slices"
	"strings"
)

// reportsAllocations returns why the runtime calls a function for no allocated buffer, or nil.
func (l *Library) reportsAllocations(function string) error {
	return l.calls(function, false, allocateNew, allocateOld)
}

// reportsFrees does the same for frees.
func (l *Library) reportsFrees(function string) error {
	return l.calls(function, true, deallocateNew, deallocateOld)
}

// calls evaluates the first of the callers that the library has over a symbolic buffer, and fails if it does not call
// the function. An optimizer may inline a function but leave its symbol, at which a probe would never be hit. A
// caller that is itself inlined, or cannot be evaluated, raises no doubt.
func (l *Library) calls(function string, allocated bool, callers ...string) error {
	image, err := l.Image()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(callers, l.Defines)
	if i < 0 {
		return nil
	}
	g := &symbolicObject{image: image, symbols: l.functions()}
	if s, ok := l.symbols[bufferIsAllocated]; ok {
		if path, _, err := compared(g, s.Value); err == nil {
			g.learn("status", path)
		}
	}
	g.inner = strings.Contains(callers[i], ofBufferImpl)
	g.reset(allocated)
	if err := g.follow(l.symbols[callers[i]].Value); err != nil {
		return nil
	}
	// Some linkers give names to PLT entries.
	const stub = "$plt"
	if !slices.ContainsFunc(g.calls, func(c call) bool { return strings.TrimSuffix(c.name, stub) == function }) {
		return fmt.Errorf("%s does not call %s", callers[i], function)
	}
	return nil
}
