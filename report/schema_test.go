package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	generator "github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"tt-memtrace/aggregator"
)

var update = flag.Bool("update", false, "write the schema")

const schemaFile = "../docs/report.schema.json"

// schema describes a report by its fields and their comments.
func schema(t *testing.T, strict bool) []byte {
	t.Helper()
	r := generator.Reflector{
		Anonymous: true, ExpandedStruct: true, AllowAdditionalProperties: !strict,
		Mapper: func(t reflect.Type) *generator.Schema {
			switch t.Kind() {
			case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
				return &generator.Schema{Type: "integer", Minimum: "0"}
			}
			return nil
		},
	}
	if err := r.AddGoComments("tt-memtrace/report", ".", generator.WithFullComment()); err != nil {
		t.Fatal(err)
	}
	for name, comment := range r.CommentMap {
		r.CommentMap[name] = strings.Join(strings.Fields(comment), " ")
	}
	s := r.Reflect(Report{})
	s.Title = "tt-memtrace report --json"
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func TestSchemaIsUpToDate(t *testing.T) {
	want := schema(t, false)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not of these types; go generate ./report makes it: %v", schemaFile, err)
	}
}

func TestReportIsAsItsSchemaSays(t *testing.T) {
	parsed, err := validator.UnmarshalJSON(bytes.NewReader(schema(t, true)))
	if err != nil {
		t.Fatal(err)
	}
	c := validator.NewCompiler()
	if err := c.AddResource("schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	refused := aggregator.Event{Kind: aggregator.Refused, PID: 1, Time: 3 * second, Memory: aggregator.L1, Stack: stack(3),
		Refusal: &aggregator.Refusal{Clash: true, Message: "m", PerBank: 1, BankBytes: 2, End: 3, Lowest: 1}}
	for name, r := range map[string]*Report{
		"nothing": told(t), "all": told(t, append(opened(), alloc(2, 1, 100, 100, stack(10)), alloc(2, 2, 0, 0, nil), refused, freed(4, 1))...),
	} {
		var b bytes.Buffer
		if err := r.JSON(&b); err != nil {
			t.Fatal(err)
		}
		value, err := validator.UnmarshalJSON(&b)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
