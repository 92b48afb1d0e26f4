package metal

import "strings"

// binaryReaders returns the functions that read a kernel's binaries, one for each class, by the class's vptr.
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

// ProgramBlock returns the vtable symbol of the control block that std::make_shared makes for a program, or "".
func (l *Library) ProgramBlock() string {
	for name := range l.symbols {
		if strings.HasPrefix(name, programVtable) && !strings.Contains(name, "$") {
			return name
		}
	}
	return ""
}
