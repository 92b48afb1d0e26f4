package metal

import "strings"

// binaryReaders are the functions that read the binaries of a kernel, one for each
// class, by the vtable that its objects point to.
func (l *Library) binaryReaders() map[uint64]string {
	m := map[uint64]string{}
	for name := range l.symbols {
		class, rest, ok := strings.Cut(strings.TrimPrefix(name, "_ZN"), "13read_binariesE")
		if !ok || strings.HasSuffix(rest, "$plt") {
			continue
		}
		if vtable, found := l.symbols[vtableOf+class+"E"]; found {
			m[vtable.Value+16] = name
		}
	}
	return m
}

// ProgramBlock is the vtable of the block that std::make_shared puts a program into, or "".
func (l *Library) ProgramBlock() string {
	for name := range l.symbols {
		if strings.HasPrefix(name, programVtable) && !strings.Contains(name, "$") {
			return name
		}
	}
	return ""
}
