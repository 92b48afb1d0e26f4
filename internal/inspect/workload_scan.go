package inspect

// ProgramsOfWorkload returns the known programs of a workload, which keeps them in the nodes of a list.
func (in *Inspector) ProgramsOfWorkload(workload uint64, known func(program uint64) bool) (list []uint64) {
	const head, node, most = 0x200, 0x180, 1024 // bytes, bytes, programs
	memory := in.pages()
	inNode := func(at uint64) uint64 {
		for o := uint64(0); o < node; o += 8 {
			if v, err := memory.U64(at + o); err != nil {
				return 0
			} else if known(v) {
				return v
			}
		}
		return 0
	}
	for o := uint64(0); o < head; o += 8 {
		first, err := memory.U64(workload + o)
		if err != nil {
			return nil
		}
		if first == 0 || first%8 != 0 || inNode(first) == 0 {
			continue
		}
		for at, n := first, 0; at != 0 && n < most; n++ {
			id := inNode(at)
			if id == 0 {
				break
			}
			list = append(list, id)
			if at, err = memory.U64(at); err != nil {
				break
			}
		}
		return list
	}
	return nil
}
