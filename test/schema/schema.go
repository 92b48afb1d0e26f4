// Package schema makes JSON schemas of the types that are printed, for tests that keep docs/*.schema.json
// true and check what is printed against them.
package schema

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	generator "github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
)

// Of describes a type of the package that is tested by its fields and their comments. A strict schema
// allows no fields that it does not know; the published ones do, because additions do not change the
// version.
func Of(t *testing.T, title string, value any, strict bool) string {
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
	if err := r.AddGoComments(reflect.TypeOf(value).PkgPath(), ".", generator.WithFullComment()); err != nil {
		t.Fatal(err)
	}
	for name, comment := range r.CommentMap {
		r.CommentMap[name] = strings.Join(strings.Fields(comment), " ")
	}
	s := r.Reflect(value)
	s.Title = title
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// Compile makes a schema ready for Validate.
func Compile(t *testing.T, text string) *validator.Schema {
	t.Helper()
	parsed, err := validator.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := validator.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Validate says what of a JSON text is not as a schema says.
func Validate(t *testing.T, s *validator.Schema, text string) error {
	t.Helper()
	value, err := validator.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return s.Validate(value)
}
