package aggregator

import "testing"

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
