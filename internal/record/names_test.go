package record

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// The names in a recording, one a line: testdata/header.txt. A name that changes or
// goes there means that older recordings are read without it.
func TestNamesInRecordingsAreFixed(t *testing.T) {
	b, err := headerOf(Header{})
	if err != nil {
		t.Fatal(err)
	}
	var h Header
	if err := json.Unmarshal(b.data, &h); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, kind := range h.Kinds[1:] {
		got = append(got, "kind "+kind)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Types)) {
		for _, m := range h.Types[name] {
			got = append(got, fmt.Sprintf("%s.%s %s", name, m[0], m[1]))
		}
	}
	golden, err := os.ReadFile("testdata/header.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(golden)), "\n")
	if slices.Equal(got, want) {
		return
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%q is missing: recordings made before have it, and would be read without it", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%q is new: add it to testdata/header.txt if it is meant", line)
		}
	}
	if !t.Failed() {
		t.Error("the order differs from testdata/header.txt")
	}
}

// Two types or fields of one name would be read as one.
func TestNamesInRecordingsAreDistinct(t *testing.T) {
	types := map[string]bool{}
	for typ, name := range typeNames {
		if types[name] {
			t.Errorf("two types are called %s", name)
		}
		types[name] = true
		fields := map[string]bool{}
		for i := range typ.NumField() {
			name := fieldName(typ, typ.Field(i))
			if fields[name] {
				t.Errorf("two fields of %s are called %s", typ, name)
			}
			fields[name] = true
		}
	}
	recorded := map[string][]member{}
	typesOf(root, recorded)
	if got, want := slices.Sorted(maps.Keys(types)), slices.Sorted(maps.Keys(recorded)); !slices.Equal(got, want) {
		t.Errorf("typeNames has %v, recorded are %v", got, want)
	}
}
