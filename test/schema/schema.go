// Package schema makes JSON schemas of the types that are printed, for tests that keep docs/*.schema.json
// true and check what is printed against them.
package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	generator "github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"tt-memtrace/aggregator/exact"
)

// Of describes a type of the package that is tested by its fields and their comments. A strict schema
// allows no fields that it does not know; the published ones do, because additions do not change the
// version.
func Of(t *testing.T, title string, value any, strict bool) string {
	t.Helper()
	r := generator.Reflector{
		Anonymous: true, ExpandedStruct: true, AllowAdditionalProperties: !strict,
		Mapper: func(t reflect.Type) *generator.Schema {
			if t == reflect.TypeFor[exact.ReasonCode]() {
				// Those of this version, and not an enum: a newer version may have others.
				s := &generator.Schema{Type: "string"}
				for _, code := range exact.ReasonCodes() {
					s.Examples = append(s.Examples, code)
				}
				return s
			}
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

// Keys lists the keys that a schema of Of describes, each with its type: "Type.key integer". A key that can be null or absent says so.
func Keys(t *testing.T, text string) []string {
	t.Helper()
	type node struct {
		Type                 any
		Ref                  string `json:"$ref"`
		OneOf                []node
		Items                *node
		AdditionalProperties any
		Properties           map[string]node
		Required             []string
		Defs                 map[string]node `json:"$defs"`
	}
	var root node
	if err := json.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
	var form func(n *node) string
	form = func(n *node) string {
		switch {
		case n.Ref != "":
			return strings.TrimPrefix(n.Ref, "#/$defs/")
		case len(n.OneOf) > 0:
			var forms []string
			for i := range n.OneOf {
				forms = append(forms, form(&n.OneOf[i]))
			}
			return strings.Join(forms, "|")
		case n.Items != nil:
			return "[]" + form(n.Items)
		case n.Type == nil:
			return "any"
		}
		return fmt.Sprint(n.Type)
	}
	var keys []string
	list := func(of string, n *node) {
		for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
			p := n.Properties[name]
			key := of + "." + name + " " + form(&p)
			if !slices.Contains(n.Required, name) {
				key += " optional"
			}
			keys = append(keys, key)
		}
	}
	list("", &root)
	for _, name := range slices.Sorted(maps.Keys(root.Defs)) {
		d := root.Defs[name]
		list(name, &d)
	}
	return keys
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
