package record

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
)

var update = flag.Bool("update", false, "write testdata/header.txt")

// enumerations are the types of numbers that recordings contain: each value keeps its meaning.
var enumerations = []struct {
	name  string
	count int
	value func(n int) fmt.Stringer
}{
	{"CBKind", int(aggregator.ReportedCircular) + 1, func(n int) fmt.Stringer { return aggregator.CBKind(n) }},
	{"FailureKind", int(aggregator.OtherFailure) + 1, func(n int) fmt.Stringer { return aggregator.FailureKind(n) }},
	{"KernelType", int(aggregator.NumKernelTypes), func(n int) fmt.Stringer { return aggregator.KernelType(n) }},
	{"Memory", int(aggregator.NumMemories), func(n int) fmt.Stringer { return aggregator.Memory(n) }},
	{"Source", int(aggregator.Sampled) + 1, func(n int) fmt.Stringer { return aggregator.Source(n) }},
}

// testdata/header.txt has all names in a recording and the values of its enumerations, one a line. A line that is not there any more
// means that recordings made earlier are read without it, or wrongly.
func TestNamesInRecordingsAreFixed(t *testing.T) {
	b, err := headerOf(Header{})
	if err != nil {
		t.Fatal(err)
	}
	var h Header
	if err := json.Unmarshal(b.data, &h); err != nil {
		t.Fatal(err)
	}
	got := []string{fmt.Sprintf("version %d", h.Version)}
	for _, name := range slices.Sorted(maps.Keys(headerKeys(t))) {
		got = append(got, "header "+name)
	}
	for _, kind := range h.Kinds[1:] {
		got = append(got, "kind "+kind)
	}
	for _, code := range aggregator.ReasonCodes() {
		got = append(got, "reason "+string(code))
	}
	for _, e := range enumerations {
		for n := range e.count {
			got = append(got, fmt.Sprintf("value %s %d %s", e.name, n, e.value(n)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Types)) {
		for _, m := range h.Types[name] {
			got = append(got, fmt.Sprintf("%s.%s %s", name, m[0], m[1]))
		}
	}
	if *update {
		if err := os.WriteFile("testdata/header.txt", []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
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
			t.Errorf("%q is missing: recordings made earlier have it. Restore it, or increase record.Version as docs/versions.md demands", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%q is new: an addition needs no new version if 0 or empty means unknown or none. -update adds it to testdata/header.txt", line)
		}
	}
	if !t.Failed() {
		t.Error("the order differs from testdata/header.txt: -update writes it")
	}
}

// headerKeys are the keys of a header whose fields are all set.
func headerKeys(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	b, err := headerOf(Header{Run: 1, Part: 1})
	keys := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(b.data, &keys)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keys
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
