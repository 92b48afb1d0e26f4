package record

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/aggregator/exact"
	"tt-memtrace/test/pinned"
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
	{"Quantity.Trust", int(exact.Unknown) + 1, func(n int) fmt.Stringer { return exact.Unknown - exact.Bound(n) }},
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
	for _, code := range exact.ReasonCodes() {
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
	pinned.Names(t, *update, "testdata/header.txt", got,
		"Recordings made earlier have it, and would be read without it: a change increases record.Version",
		"An addition needs no new version if 0 or empty means unknown or none")
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
			if fields[name] && isRecorded(typ.Field(i)) {
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
