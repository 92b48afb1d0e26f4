package metal

import (
	"fmt"
	"slices"
	"strings"
)

// reportsAllocations says why the runtime calls a function for no buffer that is allocated, or is nil.
func (l *Library) reportsAllocations(function string) error {
	return l.calls(function, false, allocateNew, allocateOld)
}

// reportsFrees is the same for frees.
func (l *Library) reportsFrees(function string) error {
	return l.calls(function, true, deallocateNew, deallocateOld)
}

// calls follows the first of the callers that the library has over a buffer that is not there. An
// optimizer that inlines a function may leave its symbol, at which a probe would never be hit.
// A caller that is inlined itself, or cannot be followed, is no reason to doubt.
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
	// Some linkers name what a call through the PLT goes to first.
	const stub = "$plt"
	if !slices.ContainsFunc(g.calls, func(c call) bool { return strings.TrimSuffix(c.name, stub) == function }) {
		return fmt.Errorf("%s does not call %s", callers[i], function)
	}
	return nil
}
