package report

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/schema"
)

var update = flag.Bool("update", false, "write the schema")

const schemaFile = "../docs/report.schema.json"

func TestSchemaIsUpToDate(t *testing.T) {
	want := schema.Of(t, "tt-memtrace report --json", Report{}, false)
	if *update {
		if err := os.WriteFile(schemaFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil || string(got) != want {
		t.Errorf("%s is not of these types; go generate ./report makes it: %v", schemaFile, err)
	}
}

func TestReportIsAsItsSchemaSays(t *testing.T) {
	s := schema.Compile(t, schema.Of(t, "", Report{}, true))
	refused := aggregator.Event{Kind: aggregator.Refused, PID: 1, Time: 3 * second, Memory: aggregator.L1, Stack: stack(3),
		Refusal: &aggregator.Refusal{Clash: true, Message: "m", PerBank: 1, BankBytes: 2, End: 3, Lowest: 1}}
	for name, r := range map[string]*Report{
		"nothing": told(t), "all": told(t, append(opened(), alloc(2, 1, 100, 100, stack(10)), alloc(2, 2, 0, 0, nil), refused, freed(4, 1))...),
	} {
		var b bytes.Buffer
		if err := r.JSON(&b); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(t, s, b.String()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
