package proc

import (
	"fmt"
	"io"
)

// Region is a range of a process's address space.
type Region struct{ Start, End uint64 }

// maxRegions bounds the regions kept: four times the mappings that the kernel permits by default.
const maxRegions = 1 << 18

// Writable lists a process's private writable memory, where its objects are, and returns where the heap that ends at
// its break begins (0 if it has none).
func Writable(pid uint32) (list []Region, heap uint64, err error) {
	f, err := OpenMaps(pid)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	return writable(f)
}

func writable(maps io.Reader) (list []Region, heap uint64, err error) {
	err = readMappings(maps, func(m *mapping) bool {
		if string(m.perms[:2]) == "rw" && m.perms[3] == 'p' {
			list = append(list, m.Region)
			if heap == 0 && string(m.path) == "[heap]" {
				heap = m.Start
			}
		}
		return len(list) <= maxRegions
	})
	if len(list) > maxRegions {
		return nil, 0, fmt.Errorf("it has more than %d writable mappings", maxRegions)
	}
	return list, heap, err
}

// PageBytes is the size of a page.
const PageBytes = 4096
