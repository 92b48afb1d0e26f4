package proc

import (
	"path/filepath"
	"strings"
)

// Release finds the version of the runtime in the name of the Python package's
// metadata folder, which is beside the package: …/ttnn-0.81.1.dist-info. The path of the
// library is one in a root, "" for one's own.
func Release(root, path string) string {
	for dir := filepath.Dir(path); len(dir) > 1; dir = filepath.Dir(dir) {
		list, err := filepath.Glob(filepath.Join(escapeGlob(root+dir), "ttnn-*.dist-info"))
		if err == nil && len(list) == 1 {
			name := strings.TrimSuffix(filepath.Base(list[0]), ".dist-info")
			return strings.TrimPrefix(name, "ttnn-")
		}
		if filepath.Base(dir) == "site-packages" || filepath.Base(dir) == "dist-packages" {
			break
		}
	}
	return ""
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}
