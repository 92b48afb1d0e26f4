package proc

// Region is a piece of a process's address space.
type Region struct{ Start, End uint64 }

// Writable lists a process's private writable memory, where its objects are, and says
// where the heap that ends at its break begins, 0 where it has none.
func Writable(pid uint32) (list []Region, heap uint64, err error) {
	maps, err := Maps(pid)
	if err != nil {
		return nil, 0, err
	}
	for _, m := range maps {
		if m.Perms.Read && m.Perms.Write && m.Perms.Private {
			list = append(list, Region{uint64(m.StartAddr), uint64(m.EndAddr)})
			if m.Pathname == "[heap]" && heap == 0 {
				heap = uint64(m.StartAddr)
			}
		}
	}
	return list, heap, nil
}

// PageBytes is the size of a page.
const PageBytes = 4096
