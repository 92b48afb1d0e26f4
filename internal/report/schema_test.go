package report

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/pinned"
	"tt-memtrace/test/schema"
)

var update = flag.Bool("update", false, "write the schema")

func TestSchemaIsUpToDate(t *testing.T) {
	for file, want := range map[string]string{
		"../../docs/report.schema.json":       schema.Of(t, "tt-memtrace report --json", Report{}, false),
		"../../docs/report-hosts.schema.json": schema.Of(t, "tt-memtrace report --json of several hosts", Hosts{}, false),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != want {
			t.Errorf("%s is not of these types; go generate ./internal/report makes it: %v", file, err)
		}
	}
}

func TestKeysAreFixed(t *testing.T) {
	var keys []string
	for _, f := range []struct {
		name  string
		value any
	}{{"report", Report{}}, {"hosts", Hosts{}}, {"diff", Diff{}}} {
		for _, key := range schema.Keys(t, schema.Of(t, "", f.value, false)) {
			keys = append(keys, f.name+" "+key)
		}
	}
	pinned.Names(t, *update, "testdata/keys.txt", keys,
		"Scripts read it: another name, type or null where there was none increases Schema", "An addition is free")
}

func TestReportIsAsItsSchemaSays(t *testing.T) {
	s, hosts := schema.Compile(t, schema.Of(t, "", Report{}, true)), schema.Compile(t, schema.Of(t, "", Hosts{}, true))
	refused := aggregator.Event{Kind: aggregator.AllocationFailed, PID: 1, Time: 3 * second, Memory: aggregator.L1, Stack: stack(3),
		Failure: &aggregator.FailedAllocation{Kind: aggregator.Clash, Message: "m", PerBank: 1, BankBytes: 2, End: 3, Lowest: 1}}
	full := aggregator.Event{Kind: aggregator.AllocationFailed, PID: 1, Time: 3 * second, Memory: aggregator.DRAM, Failure: &aggregator.FailedAllocation{Message: "m"}}
	for name, r := range map[string]*Report{
		"nothing": told(t), "all": told(t, append(opened(), alloc(2, 1, 100, 100, stack(10)), alloc(2, 2, 0, 0, nil), refused, full, freed(4, 1))...),
	} {
		var b bytes.Buffer
		if err := r.JSON(&b); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(t, s, b.String()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.Reset()
		if err := Merge([]*Report{r, r}, [][]string{{"a"}, {"b", "c"}}).JSON(&b); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(t, hosts, b.String()); err != nil {
			t.Errorf("%s, of two hosts: %v", name, err)
		}
	}
}
