package export

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"tt-memtrace/aggregator"
	"tt-memtrace/test/pinned"
	"tt-memtrace/test/schema"
)

// schemas are the types that are described, each in docs/NAME.schema.json.
var schemas = []struct {
	name, title string
	value       any
}{
	{"status", "tt-memtrace status --json", Status{}},
	{"log", "tt-memtrace log --json, one line of a buffer", LogLine{}},
	{"log-programs", "tt-memtrace log --json, one line of a program's buffer", ProgramLine{}},
	{"log-kernels", "tt-memtrace log --json, one line of a kernel's binary", KernelLine{}},
	{"log-failures", "tt-memtrace log --json, one line of a failed allocation", LoggedFailure{}},
}

func TestSchemasAreUpToDate(t *testing.T) {
	for _, s := range schemas {
		golden(t, "../../docs/"+s.name+".schema.json", schema.Of(t, s.title, s.value, false))
	}
}

func TestOutputIsAsItsSchemaSays(t *testing.T) {
	for _, strict := range []bool{false, true} {
		s := schema.Compile(t, schema.Of(t, "", Status{}, strict))
		for name, a := range map[string]*aggregator.Aggregator{"nothing": aggregator.New(), "all": stream(nil)} {
			if err := schema.Validate(t, s, status(t, a.Snapshot())); err != nil {
				t.Errorf("status of %s: %v", name, err)
			}
		}
		s = schema.Compile(t, schema.Of(t, "", LogLine{}, strict))
		var b bytes.Buffer
		stream(NewLogger(&b, true, wall).Change)
		for line := range strings.Lines(b.String()) {
			if err := schema.Validate(t, s, line); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
}

// TestSchemasRefuse shows that they are no empty promise.
func TestSchemasRefuse(t *testing.T) {
	good := status(t, stream(nil).Snapshot())
	s := schema.Compile(t, schema.Of(t, "", Status{}, false))
	for old, new := range map[string]string{
		`"schema": 1`:                   `"schema": 2`,
		`"host": "tt-host-01",`:         ``,
		`"events_lost": 3`:              `"events_lost": null`,
		`"requested_bytes": 1048576`:    `"requested_bytes": -1`,
		`"reserved_bytes": 1572864`:     `"reserved_bytes": "1572864"`,
		`"2025-01-02T12:03:11Z"`:        `"yesterday"`,
		`"command": "pytest -x"`:        `"command": 5`,
		`"private_to": 200`:             `"private_to": null`,
		`"late": true`:                  `"late": "yes"`,
		`"capacity_bytes": 12884901888`: `"capacity_bytes": 1.5`,
		`"buffers": 1,`:                 ``,
		`"arch": "wormhole_b0"`:         `"arch": 2`,
	} {
		if !strings.Contains(good, old) {
			t.Errorf("no %s to spoil", old)
		} else if schema.Validate(t, s, strings.Replace(good, old, new, 1)) == nil {
			t.Errorf("%s instead of %s is accepted", new, old)
		}
	}
	if err := schema.Validate(t, s, strings.Replace(good, `"host"`, `"added_later": 1, "host"`, 1)); err != nil {
		t.Errorf("an addition is refused: %v", err)
	}
}

func TestKeysAreFixed(t *testing.T) {
	var keys []string
	for _, s := range schemas {
		for _, key := range schema.Keys(t, schema.Of(t, s.title, s.value, false)) {
			keys = append(keys, s.name+" "+key)
		}
	}
	pinned.Names(t, *update, "testdata/keys.txt", keys,
		"Scripts read it: another name, type or null where there was none increases StatusSchema or LogSchema", "An addition is free")
}

func TestEveryFieldIsDescribed(t *testing.T) {
	for _, s := range schemas {
		var root map[string]any
		if err := json.Unmarshal([]byte(schema.Of(t, s.title, s.value, false)), &root); err != nil {
			t.Fatal(err)
		}
		wantDescribed(t, s.name, root)
		if defs, ok := root["$defs"].(map[string]any); ok {
			for name, d := range defs {
				wantDescribed(t, name, d.(map[string]any))
			}
		}
	}
}

// units are what the numbers of a description count, one of which it has to name.
var units = []string{"bytes", "Number of", "Version of this format", "PID", "thread's id", "Number of the chip", "Status that it gave exit(2)"}

// ofBytes matches the description of a size or an address, but not one that names a key such as used_bytes.
var ofBytes = regexp.MustCompile(`\bbytes\b`)

func wantDescribed(t *testing.T, of string, s map[string]any) {
	t.Helper()
	if s["description"] == nil {
		t.Errorf("%s has no description", of)
	}
	for name, p := range s["properties"].(map[string]any) {
		property := p.(map[string]any)
		text, isNumber := property["description"], property["type"] == "integer"
		if either, ok := property["oneOf"].([]any); ok {
			first := either[0].(map[string]any)
			text, isNumber = first["description"], first["type"] == "integer"
			if said, _ := text.(string); !strings.Contains(said, "null where") {
				t.Errorf("%s.%s does not say when it is null", of, name)
			}
		}
		said, _ := text.(string)
		if said == "" {
			t.Errorf("%s.%s has no description", of, name)
		}
		if isNumber && !containsAny(said, units) {
			t.Errorf("%s.%s does not say what it counts: %q", of, name, said)
		}
		if isNumber && ofBytes.MatchString(said) && !containsAny(name, []string{"bytes", "address"}) {
			t.Errorf("%s.%s has no unit in its name: %q", of, name, said)
		}
	}
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}
