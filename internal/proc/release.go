package proc

import (
	"path/filepath"
	"strings"
)

// Release finds the runtime's version in the name of the Python package's metadata folder beside the package:
// …/ttnn-0.81.1.dist-info. path is inside root; "" is the caller's root.
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
