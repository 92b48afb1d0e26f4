package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// configured is what `config ARGS` prints with a file and an environment.
func configured(t *testing.T, file string, env []string, args ...string) (map[string]map[string]any, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := readSettings(path, func(name string) (string, bool) {
		for _, v := range env {
			if n, value, _ := strings.Cut(v, "="); n == name {
				return value, true
			}
		}
		return "", false
	})
	if err != nil {
		return nil, "", err
	}
	var out strings.Builder
	err = printConfig(&out, s, env, args)
	var values map[string]map[string]any
	if e := yaml.Unmarshal([]byte(out.String()), &values); e != nil {
		t.Fatalf("%v in\n%s", e, out.String())
	}
	return values, out.String(), err
}

// The command line comes before the environment, that before the file, and in
// each what is for one command before what is for all.
func TestOrderOfSettings(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		env  []string
		args []string
		want int
		from string
	}{
		"nothing":                   {"", nil, nil, defaultRing, "# default"},
		"the file":                  {"ring-buffer-bytes: 8192", nil, nil, 8192, "config.yaml: ring-buffer-bytes"},
		"the file, for the command": {"ring-buffer-bytes: 4096\nexporter: {ring-buffer-bytes: 8192}", nil, nil, 8192, "config.yaml: exporter.ring-buffer-bytes"},
		"for another command":       {"log: {ring-buffer-bytes: 8192}", nil, nil, defaultRing, "# default"},
		"the environment":           {"exporter: {ring-buffer-bytes: 4096}", []string{"TT_MEMTRACE_RING_BUFFER_BYTES=8192"}, nil, 8192, "# TT_MEMTRACE_RING_BUFFER_BYTES"},
		"the environment, for the command": {"ring-buffer-bytes: 4096", []string{"TT_MEMTRACE_RING_BUFFER_BYTES=4096", "TT_MEMTRACE_EXPORTER_RING_BUFFER_BYTES=8192"}, nil, 8192,
			"# TT_MEMTRACE_EXPORTER_RING_BUFFER_BYTES"},
		"the command line": {"ring-buffer-bytes: 4096", []string{"TT_MEMTRACE_EXPORTER_RING_BUFFER_BYTES=4096"}, []string{"--ring-buffer-bytes", "8192"}, 8192, "# command line"},
	} {
		t.Run(name, func(t *testing.T) {
			values, text, err := configured(t, test.file, test.env, append([]string{"exporter"}, test.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := values["exporter"]["ring-buffer-bytes"]; got != test.want {
				t.Errorf("%v, not %v", got, test.want)
			}
			line := text[strings.Index(text, "ring-buffer-bytes:"):]
			if line, _, _ = strings.Cut(line, "\n"); !strings.HasSuffix(line, test.from) {
				t.Errorf("%q is not from %q", line, test.from)
			}
		})
	}
}

func TestMistakesInTheConfiguration(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		env  []string
		says []string
	}{
		"an unknown key":              {"ring-byte: 4096", nil, []string{`"ring-byte"`}},
		"an unknown key of a command": {"exporter: {listn: x}", nil, []string{`"exporter.listn"`}},
		"a flag of another command":   {"exporter: {after: 5s}", nil, []string{`"exporter.after"`}},
		"an unknown command":          {"exporters: {listen: x}", nil, []string{`"exporters.listen"`}},
		"several":                     {"a: 1\nb: 2", nil, []string{`"a"`, `"b"`}},
		"a process":                   {"pid: 7", nil, []string{`"pid"`}},
		"no number":                   {"ring-buffer-bytes: many", nil, []string{"ring-buffer-bytes", `"many": not a whole number`}},
		"neither":                     {"status: {json: perhaps}", nil, []string{"status.json", `"perhaps": neither true nor false`}},
		"a wrong number":              {"ring-buffer-bytes: 5000", nil, []string{"power of two"}},
		"no time":                     {"exporter: {otlp-interval: 5}", nil, []string{"otlp-interval", `"5": not a duration such as 500ms`}},
		"a list":                      {"exporter: {listen: [a, b]}", nil, []string{"exporter.listen", "not a list"}},
		"no value":                    {"exporter: {listen: }", nil, []string{"exporter.listen", "no value"}},
		"deeper":                      {"exporter: {listen: {a: b}}", nil, []string{"exporter.listen.a"}},
		"no address":                  {"exporter: {listen: nowhere}", nil, []string{"nowhere"}},
		"nowhere to go":               {"exporter: {listen: ''}", nil, []string{"--listen", "--otlp"}},
		"no URL":                      {"exporter: {otlp: collector}", nil, []string{"collector"}},
		"no users":                    {"exporter: {web-config: /nonexistent.yaml}", nil, []string{"/nonexistent.yaml"}},
		"a list instead of keys":      {"- a", nil, []string{"config.yaml"}},
		"no YAML":                     {"a: [", nil, []string{"config.yaml"}},
		"twice":                       {"quiet: true\nquiet: false", nil, []string{"already defined"}},
		"a variable":                  {"", []string{"TT_MEMTRACE_RINGBYTES=1"}, []string{"TT_MEMTRACE_RINGBYTES"}},
		"a variable's value":          {"", []string{"TT_MEMTRACE_QUIET=perhaps"}, []string{"TT_MEMTRACE_QUIET"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := configured(t, test.file, test.env)
			if !errors.Is(err, errUsage) {
				t.Fatalf("the error is %v", err)
			}
			for _, s := range test.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("no %q in: %v", s, err)
				}
			}
		})
	}
}

// A command can be called as a flag is.
func TestCommandsAndFlagsOfOneName(t *testing.T) {
	values, _, err := configured(t, "forward: {socket: /a}\nlog: {forward: /b}", nil)
	if err != nil {
		t.Fatal(err)
	}
	if values["forward"]["socket"] != "/a" || values["log"]["forward"] != "/b" || values["status"]["forward"] != "" {
		t.Errorf("%v", values)
	}
}

// What is printed is itself a configuration, and the same one.
func TestPrintedConfigurationIsOne(t *testing.T) {
	first, text, err := configured(t, "lib: [/a b/x.so, 'no']\nquiet: true\nstatus: {every: 90s}\nexporter: {listen: ':1', process-series: 0}", nil)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := configured(t, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	for command, flags := range first {
		for name, v := range flags {
			if got := second[command][name]; !equal(got, v) {
				t.Errorf("%s.%s: %v, then %v", command, name, v, got)
			}
		}
	}
	if got := first["exporter"]["lib"]; !equal(got, []any{"/a b/x.so", "no"}) {
		t.Error(got)
	}
	if first["log"]["quiet"] != true || first["status"]["every"] != "1m30s" {
		t.Error(text)
	}
}

func equal(a, b any) bool {
	x, _ := yaml.Marshal(a)
	y, _ := yaml.Marshal(b)
	return string(x) == string(y)
}

func TestMissingFile(t *testing.T) {
	none := func(string) (string, bool) { return "", false }
	if _, err := readSettings("/nonexistent.yaml", none); err == nil {
		t.Error("a file that is named and missing is no error")
	}
	if _, err := os.Stat(defaultConfig); err == nil {
		t.Skip("there is a " + defaultConfig)
	}
	if _, err := readSettings("", none); err != nil {
		t.Error(err)
	}
	if _, err := readSettings("", func(name string) (string, bool) { return "/nonexistent.yaml", name == "TT_MEMTRACE_CONFIG" }); err == nil {
		t.Error("$TT_MEMTRACE_CONFIG is not looked at")
	}
}

// Every live command has --metrics, and exporter --listen.
func TestEveryLiveCommandHasMetrics(t *testing.T) {
	root := newRoot()
	for _, name := range []string{"", "top", "status", "log", "forward", "serve", "exporter"} {
		cmd := root
		if name != "" {
			cmd, _, _ = root.Find([]string{name})
		}
		if cmd.Flags().Lookup("metrics") == nil {
			t.Errorf("%s has no --metrics", name)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add("exporter: {listen: x}\nlib: [a]\n1: 2")
	f.Add("&a a: *a")
	f.Add("? [a]\n: b")
	f.Fuzz(func(t *testing.T, file string) {
		if len(file) > 1000 {
			return
		}
		_, _, err := configured(t, file, nil)
		if err != nil && !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", file, err)
		}
	})
}
