package exact

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tt-memtrace/test/pinned"
)

var update = flag.Bool("update", false, "write the table of reasons into docs/json.md")

// declared returns the values of the constants in reasons.go whose names begin with Reason.
func declared(t *testing.T) map[string]ReasonCode {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]ReasonCode{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Reason") && len(v.Values) == 1 {
			if text, ok := v.Values[0].(*ast.BasicLit); ok {
				codes[v.Names[0].Name] = ReasonCode(strings.Trim(text.Value, `"`))
			}
		}
		return true
	})
	return codes
}

func TestEveryReasonHasARow(t *testing.T) {
	codes := declared(t)
	for name, code := range codes {
		if rows[code] == nil {
			t.Errorf("%s has no row", name)
		}
	}
	if len(codes) != len(Reasons) || len(rows) != len(Reasons) {
		t.Errorf("%d constants, %d rows, %d of them distinct", len(codes), len(Reasons), len(rows))
	}
	meaning := map[string]string{}
	for _, r := range Reasons {
		if r.Sentence == "" || strings.HasSuffix(r.Sentence, ".") || !strings.HasSuffix(r.Meaning, ".") || (r.Letter == "") != (r.Brief == "") {
			t.Errorf("%s: %+v", r.Code, r)
		}
		if before, known := meaning[r.Letter]; known && r.Letter != "" && before != r.Brief {
			t.Errorf("%s is both %q and %q", r.Letter, before, r.Brief)
		}
		meaning[r.Letter] = r.Brief
		if r.Contradiction && !r.Code.Suspect() {
			t.Errorf("no comparison lifts %s, which a comparison raises", r.Code)
		}
	}
}

// What a few reasons affect is stated here once more: a wrong row would mislead every output alike.
func TestReasonsAffectWhatTheyMust(t *testing.T) {
	for code, want := range map[ReasonCode]string{
		ReasonEventsLost: "buffers, programs, peaks, calls, launches, unsafe", ReasonForked: "buffers, programs, unsafe",
		ReasonBuffersUnread: "buffers", ReasonMissedFree: "frees", ReasonInconsistentProgramEvents: "programs",
		ReasonChipsUnknown: "programs, places", ReasonSampled: "", ReasonTotalsOnly: "",
		// The largest free block is known while one of these holds.
		ReasonLaunchesUncounted: "launches", ReasonProgramChipsUnknown: "program places", ReasonTracesMissed: "unsafe",
	} {
		if got := code.Row().Affects.String(); got != want {
			t.Errorf("%s affects %q, not %q", code, got, want)
		}
	}
	newer := ReasonCode("of_a_newer_version")
	for i := range affected {
		if !newer.Affects(1 << i) {
			t.Errorf("a reason of a newer version does not affect %s", affected[i])
		}
	}
	if affectsAll != 1<<len(affected)-1 {
		t.Errorf("%d words for %b", len(affected), affectsAll)
	}
	if newer.Missed() || newer.Suspect() || newer.Letter() != OtherLetter || newer.Row().Sentence != "of a newer version" {
		t.Errorf("%+v", newer.Row())
	}
}

func TestReasonsAreDocumented(t *testing.T) {
	const path, head = "../../docs/json.md", "| code | letter | affects | exit 5 | why numbers are not exact | ends with |\n|---|---|---|---|---|---|\n"
	var want strings.Builder
	for _, r := range Reasons {
		missed, affects := "", r.Affects.String()
		if r.Missed {
			missed = "yes"
		}
		if affects == "" {
			affects = "-"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s | %s |\n", r.Code, r.Code.Letter(), affects, missed, r.Meaning, r.EndsWith())
	}
	pinned.Table(t, *update, path, head, want.String(), "go generate ./aggregator/exact")
	// Pages that explain the letters have all of them.
	for _, page := range []string{"../../docs/ui.md", "../../docs/guide.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range Letters {
			if !strings.Contains(string(text), "`"+l.Letter+"`") {
				t.Errorf("%s does not explain %s", page, l.Letter)
			}
		}
	}
}

// lists returns the reasons that an expression lists or distinguishes: the elements of a list or map, the cases of a
// switch, and what is compared.
func lists(n ast.Node) (codes []string) {
	add := func(list ...ast.Expr) {
		for _, x := range list {
			if kv, ok := x.(*ast.KeyValueExpr); ok {
				x = kv.Key
			}
			if s, ok := x.(*ast.SelectorExpr); ok && isReason.MatchString(s.Sel.Name) {
				if from, ok := s.X.(*ast.Ident); ok && from.Name == "exact" {
					codes = append(codes, s.Sel.Name)
				}
			}
		}
	}
	switch n := n.(type) {
	case *ast.CompositeLit:
		add(n.Elts...)
	case *ast.CaseClause:
		add(n.List...)
	case *ast.BinaryExpr:
		if n.Op == token.EQL || n.Op == token.NEQ {
			add(n.X, n.Y)
		}
	}
	return codes
}

var isReason = regexp.MustCompile(`^Reason[A-Z]`)

// mostOfAFile is how many reasons a file may distinguish from others, because it does something that only that reason needs.
const mostOfAFile = 3

// The table is the only list of reasons: what follows from a reason is a question to its row. Code that lists several
// reasons would have to be found by whoever adds one.
func TestThereIsOneListOfReasons(t *testing.T) {
	const root = "../.."
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || path != root && strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == root+"/aggregator/exact" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		files++
		if listed := listedIn(file); len(listed) > mostOfAFile {
			t.Errorf("%s distinguishes %s: make it a question to the table in aggregator/exact/reasons.go", path, strings.Join(listed, ", "))
		}
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files: %v", files, err)
	}
}

func listedIn(file *ast.File) (listed []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		listed = append(listed, lists(n)...)
		return true
	})
	slices.Sort(listed)
	return slices.Compact(listed)
}

func TestListsAreFound(t *testing.T) {
	const code = `package p
var m = map[exact.ReasonCode]bool{exact.ReasonLate: true, exact.ReasonSampled: false}
var l = []exact.ReasonCode{exact.ReasonForked}
func f(c exact.ReasonCode, x exact.ReasonCode) bool {
	switch c { case exact.ReasonBehind, exact.ReasonEventsLost: return true }
	raise(exact.ReasonNotTraced)
	return x == exact.ReasonTotalsOnly || exact.ReasonMissedFree != x
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", code, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ReasonBehind", "ReasonEventsLost", "ReasonForked", "ReasonLate", "ReasonMissedFree", "ReasonSampled", "ReasonTotalsOnly"}
	if got := listedIn(file); !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
