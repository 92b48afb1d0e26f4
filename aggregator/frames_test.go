package aggregator

import (
	"strings"
	"testing"
)

func TestOwnCode(t *testing.T) {
	inner := Frame{Function: "tt::tt_metal::Buffer::create", Module: "/usr/lib/libtt_metal.so"}
	wrapper := Frame{Function: "__call__", File: "/usr/lib/python3/site-packages/ttnn/decorators.py", Line: 1, Python: true}
	own := Frame{Function: "main", File: "model.py", Line: 3, Python: true}
	native := Frame{Function: "Model::load", Module: "/opt/model"}
	for want, frames := range map[int][]Frame{
		2: {inner, wrapper, own, native},
		1: {inner, wrapper, native},
		3: {inner, inner, inner, native},
		0: {inner, inner},
	} {
		first := -1
		is := OwnCode(frames)
		for i := range frames {
			if is(&frames[i]) {
				first = i
				break
			}
		}
		if first != want {
			t.Errorf("%v: %d, want %d", frames, first, want)
		}
	}
	if OwnCode([]Frame{{Address: 1}}) != nil {
		t.Error("a stack without names has code of its own")
	}
}

// A call without a name, and missing outer calls, are an ellipsis between the user's own calls: a stack that lacks some is
// never called the same as one that does not.
func TestOwnCallsThatAreMissing(t *testing.T) {
	python := func(name string) Frame { return Frame{Function: name, File: "model.py", Line: 1, Python: true} }
	unnamed := Frame{Python: true}
	library := Frame{Function: "__call__", File: "/usr/lib/python3/site-packages/ttnn/decorators.py", Line: 1, Python: true}
	runtime := Frame{Function: "tt::tt_metal::Buffer::create", Module: "/usr/lib/libtt_metal.so"}
	native, stripped := Frame{Function: "load", Module: "/opt/model"}, Frame{Module: "/opt/model", Address: 8}
	for _, c := range []struct {
		want     string
		complete bool
		stack    Stack
	}{
		{"inner ← run", true, Stack{Frames: []Frame{runtime, python("inner"), library, python("run")}}},
		{"inner ← … ← run", false, Stack{Frames: []Frame{runtime, python("inner"), unnamed, unnamed, python("run")}}},
		{"… ← run", false, Stack{Frames: []Frame{runtime, unnamed, python("run")}}},
		{"…", false, Stack{Frames: []Frame{runtime, unnamed}}},
		{"… ← __call__", false, Stack{Frames: []Frame{runtime, unnamed, library}}}, // the first may be the user's own
		{"inner ← …", false, Stack{Frames: []Frame{python("inner")}, Cut: true}},
		{"a ← b ← c", false, Stack{Frames: []Frame{python("a"), python("b"), python("c"), unnamed}, Cut: true}},
		{"load ← … ← load", true, Stack{Frames: []Frame{runtime, native, stripped, native}}},
		{"", true, Stack{}},
	} {
		got := strings.Join(c.stack.OwnCalls(3, func(f *Frame) string { return f.Function }), " ← ")
		if got != c.want || c.stack.Complete() != c.complete {
			t.Errorf("%+v: %q, complete %v; want %q", c.stack, got, c.stack.Complete(), c.want)
		}
	}
}
