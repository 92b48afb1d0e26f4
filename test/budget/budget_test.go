// Package budget measures how large types, files and packages are, and holds them to a budget. What exceeds it is in
// over.txt, and that only shrinks: linters count lines and branches of functions, and so push length into types and
// packages. It also looks for words that texts must not have.
package budget

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/tools/go/packages"
)

var update = flag.Bool("update", false, "write over.txt, if nothing in it grows")

// A measure that exceeds its budget is listed.
var budget = map[string]int{
	"methods of a type":  40,
	"files of a type":    6,  // that declare its methods
	"files of a package": 20, // without tests
	"files in a cycle":   12, // each of which refers, through others, to each other one
	"lines over 120":     0,  // of a package with its tests; a tab counts as four
}

const longest = 120

func TestBudget(t *testing.T) {
	over, places := map[string]int{}, map[string][]string{}
	note := func(measure, what string, n int, at ...string) {
		if n > budget[measure] {
			over[measure+"\t"+what] = n
			places[measure+"\t"+what] = at
		}
	}
	const mode = packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
		packages.NeedTypesInfo | packages.NeedImports
	loaded, err := packages.Load(&packages.Config{Dir: "../..", Mode: mode}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	if len(loaded) < 40 {
		t.Fatalf("only %d packages were found", len(loaded))
	}
	for _, p := range loaded {
		for _, e := range p.Errors {
			t.Fatal(e)
		}
		folder := strings.TrimPrefix(p.PkgPath, "tt-memtrace/")
		note("files of a package", folder, len(p.GoFiles), folder)
		note("files in a cycle", folder, largestCycle(references(p)), folder)
		long := longLines(t, folder)
		note("lines over 120", folder, len(long), long...)
		methods, files := methodsOf(p)
		for name, n := range methods {
			note("methods of a type", folder+"."+name, n, declared(p, folder, name))
			note("files of a type", folder+"."+name, files[name], declared(p, folder, name))
		}
	}
	compare(t, over, places)
}

// declared returns the file and line at which a type is declared.
func declared(p *packages.Package, folder, name string) string {
	o := p.Types.Scope().Lookup(name)
	if o == nil {
		return folder
	}
	at := p.Fset.Position(o.Pos())
	return fmt.Sprintf("%s:%d", filepath.Join(folder, filepath.Base(at.Filename)), at.Line)
}

// compare holds what is over the budget to the list of what exceeds it. places has the files and lines of each.
func compare(t *testing.T, over map[string]int, places map[string][]string) {
	t.Helper()
	const file = "over.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var n int
		if what, count, ok := strings.Cut(strings.TrimSpace(line), "\t= "); ok {
			if _, err := fmt.Sscan(count, &n); err != nil {
				t.Fatal(line, err)
			}
			listed[what] = n
		}
	}
	var now strings.Builder
	grown, shrunk := false, false
	for _, what := range slices.Sorted(maps.Keys(over)) {
		fmt.Fprintf(&now, "%s\t= %d\n", what, over[what])
		if was, ok := listed[what]; !ok || over[what] > was {
			measure, _, _ := strings.Cut(what, "\t")
			t.Errorf("%s: %d, the budget is %d, and test/budget/%s allows %d; here:\n%s",
				strings.ReplaceAll(what, "\t", ": "), over[what], budget[measure], file, listed[what],
				strings.Join(places[what], "\n"))
			grown = true
		}
	}
	for what, was := range listed {
		shrunk = shrunk || over[what] < was
	}
	switch {
	case *update && (!grown || len(listed) == 0):
		if err := os.WriteFile(file, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	case shrunk && !grown:
		t.Errorf("less is over the budget than test/budget/%s lists: go test ./test/budget -update shortens it", file)
	}
}

// methodsOf counts each type's methods and the files that declare them.
func methodsOf(p *packages.Package) (methods, files map[string]int) {
	methods, files = map[string]int{}, map[string]int{}
	for _, f := range p.Syntax {
		here := map[string]bool{}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				name := receiver(fn.Recv.List[0].Type)
				methods[name]++
				if !here[name] {
					here[name] = true
					files[name]++
				}
			}
		}
	}
	return methods, files
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// references maps each file of a package to those that declare what it uses.
func references(p *packages.Package) map[string][]string {
	to := map[string][]string{}
	for _, f := range p.Syntax {
		file := p.Fset.File(f.Pos())
		uses := map[string]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			o := p.TypesInfo.Uses[id]
			if v, ok := o.(*types.Var); o == nil || o.Pkg() != p.Types || !o.Pos().IsValid() || ok && v.IsField() {
				return true
			}
			if at := p.Fset.File(o.Pos()); at != file {
				uses[at.Name()] = true
			}
			return true
		})
		to[file.Name()] = slices.Collect(maps.Keys(uses))
	}
	return to
}

// largestCycle returns the size of the largest strongly connected component, by Tarjan's algorithm.
func largestCycle(to map[string][]string) (largest int) {
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, on[v] = append(stack, v), true
		for _, w := range to[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if on[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] == index[v] {
			at := slices.Index(stack, v)
			largest = max(largest, len(stack)-at)
			for _, w := range stack[at:] {
				on[w] = false
			}
			stack = stack[:at]
		}
	}
	for v := range to {
		if index[v] == 0 {
			visit(v)
		}
	}
	return largest
}

// longLines returns the file and line of each line of a folder that is too long.
func longLines(t *testing.T, folder string) (places []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(text, []byte("// Code generated ")) {
			continue
		}
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			if line = strings.TrimRight(line, "\n"); strings.HasPrefix(line, "//go:generate ") {
				continue // it cannot be wrapped
			}
			if utf8.RuneCountInString(line)+3*strings.Count(line, "\t") > longest {
				places = append(places, fmt.Sprintf("%s:%d", filepath.Join(folder, filepath.Base(file)), number))
			}
		}
	}
	return places
}

func TestLargestCycle(t *testing.T) {
	for _, c := range []struct {
		to   map[string][]string
		want int
	}{
		{map[string][]string{}, 0},
		{map[string][]string{"a": {"b"}, "b": nil}, 1},
		{map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}, 3},
		{map[string][]string{"a": {"b", "c"}, "b": {"a"}, "c": {"b"}, "d": {"a"}}, 3},
	} {
		if got := largestCycle(c.to); got != c.want {
			t.Errorf("%v: %d, not %d", c.to, got, c.want)
		}
	}
}
