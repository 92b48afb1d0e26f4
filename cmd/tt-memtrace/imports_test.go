package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

const (
	module = "tt-memtrace"
	// everyone may import this folder.
	everyone = "internal/plural"
)

var cell = regexp.MustCompile(`[a-z0-9_/-]+/`)

// The table in docs/architecture.md says what each folder may import. A folder may also
// import what lies inside it, and internal/plural. What tests import is free.
func TestImportsAreThoseOfTheTable(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	allowed, err := importTable(string(doc))
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{}
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		folder := strings.TrimPrefix(p.ImportPath, module+"/")
		packages[folder] = true
		may, ok := allowed[folder]
		if !ok {
			t.Errorf("%s has no row in the table of docs/architecture.md", folder)
			continue
		}
		for _, path := range p.Imports {
			if imported, own := strings.CutPrefix(path, module+"/"); own && imported != everyone && !may["all"] && !may[imported] &&
				!strings.HasPrefix(imported, folder+"/") {
				t.Errorf("%s imports %s, which its row in docs/architecture.md does not allow", folder, imported)
			}
		}
	}
	for folder, may := range allowed {
		if _, err := os.Stat("../../" + folder); err != nil {
			t.Errorf("the table of docs/architecture.md has a row for %s, which is not there", folder)
		}
		for imported := range may {
			if imported != "all" && !packages[imported] {
				t.Errorf("the table of docs/architecture.md lets %s import %s, which is no package", folder, imported)
			}
		}
	}
}

// importTable reads the table whose third column is "may import".
func importTable(doc string) (map[string]map[string]bool, error) {
	_, table, ok := strings.Cut(doc, "| may import |\n|---|---|---|\n")
	if !ok {
		return nil, errors.New("docs/architecture.md has no table with a column \"may import\"")
	}
	allowed := map[string]map[string]bool{}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 {
			return nil, errors.New("docs/architecture.md: not three columns: " + line)
		}
		may := map[string]bool{}
		if list := strings.TrimSpace(cells[2]); list != "-" {
			for name := range strings.SplitSeq(list, ",") {
				may[strings.TrimSpace(name)] = true
			}
		}
		for _, folder := range cell.FindAllString(cells[0], -1) {
			allowed[strings.TrimSuffix(folder, "/")] = may
		}
	}
	return allowed, nil
}

// The test above finds what is wrong.
func TestImportTable(t *testing.T) {
	allowed, err := importTable("text\n\n| folder | what | may import |\n|---|---|---|\n| a/, b/c/ | x | - |\n| d/ | y | a, b/c |\n\n| e/ | no | all |\n")
	if err != nil || len(allowed) != 3 || len(allowed["b/c"]) != 0 || !allowed["d"]["b/c"] || !allowed["d"]["a"] {
		t.Errorf("%v, %v", allowed, err)
	}
	for _, bad := range []string{"", "| may import |\n|---|---|---|\n| a/ | x |\n"} {
		if _, err := importTable(bad); err == nil {
			t.Errorf("%q has a table", bad)
		}
	}
}
