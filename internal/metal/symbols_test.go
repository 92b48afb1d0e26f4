package metal

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Mangled names of the runtime are in symbols.go and nowhere else.
func TestMangledNamesAreInOneFile(t *testing.T) {
	mangled := regexp.MustCompile(`"[^"]*(_ZNK?\d|_ZTV|2tt8tt_metal|4ttnn)[^"]*"`)
	looked := 0
	for _, dir := range []string{".", "../../tracer", "../inspect", "../discover", "../proc"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || file == "symbols.go" {
				continue
			}
			looked++
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if found := mangled.Find(text); found != nil {
				t.Errorf("%s: %s", file, found)
			}
		}
	}
	if looked < 20 {
		t.Errorf("only %d files were looked at", looked)
	}
}
