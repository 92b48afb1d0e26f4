package x86eval

import "strings"

// ofPath begins, behind _ZN or _ZNK, the names of the members of std::filesystem::path in libstdc++.
const ofPath = "St10filesystem7__cxx114path"

// Paths returns hooks for the functions with which libstdc++ joins std::filesystem::paths, which takes thousands of
// instructions. A path is then only its text, not split into components, as its default constructor leaves it. A
// member that may look at components is an ErrUnsupported. But inlined code may look at them unnoticed: compare with
// the result without these hooks.
func Paths(symbol string) (Hook, bool) {
	name, ok := strings.CutPrefix(symbol, "_ZN"+ofPath)
	if !ok {
		name, ok = strings.CutPrefix(symbol, "_ZNK"+ofPath)
	}
	const ofView = "ESt17basic_string_viewIcSt11char_traitsIcEE"
	switch {
	case !ok, strings.HasPrefix(name, "5_List"): // to copy no components and to drop them is quick
		return nil, false
	case name == "14_M_split_cmptsEv":
		return Return(0), true
	case name == "dVERKS1_":
		return joinPath(joined, func(m *Machine) (string, error) { return m.ReadString(m.Arg(1)) }), true
	case name == "9_M_append"+ofView:
		return joinPath(joined, viewedText), true
	case name == "9_M_concat"+ofView:
		return joinPath(func(path, name string) string { return path + name }, viewedText), true
	}
	return func(*Machine) error { return unsupported("%s of a path without components", symbol) }, true
}

// joined returns the result of operator/= on two paths; a leading / is the root.
func joined(path, name string) string {
	switch {
	case strings.HasPrefix(name, "/"):
		return name
	case path == "" || strings.HasSuffix(path, "/"):
		return path + name
	}
	return path + "/" + name
}

func joinPath(join func(path, name string) string, name func(*Machine) (string, error)) Hook {
	return func(m *Machine) error {
		this := m.Arg(0)
		path, err := m.ReadString(this)
		if err != nil {
			return err
		}
		n, err := name(m)
		if err != nil {
			return err
		}
		m.Regs[RAX] = this
		return m.WriteString(this, join(path, n))
	}
}

// maxString is more bytes than any path has.
const maxString = 4096

// viewedText returns the text of a std::string_view that is passed by value behind `this`: length, then pointer.
func viewedText(m *Machine) (string, error) { return m.text(m.Arg(2), m.Arg(1)) }

func (m *Machine) text(at, n uint64) (string, error) {
	if n > maxString {
		return "", limit("the length of a string")
	}
	b := make([]byte, n)
	err := m.read(b, at)
	return string(b), err
}

// ReadString reads a std::string of libstdc++ (a pointer to its bytes, and their number) unless it is longer than any
// path.
func (m *Machine) ReadString(at uint64) (string, error) {
	begin, err := m.readUint(at, 8)
	if err != nil {
		return "", err
	}
	n, err := m.readUint(at+8, 8)
	if err != nil {
		return "", err
	}
	return m.text(begin, n)
}

// WriteString makes a std::string at an address. It does not free what was there: nothing is freed, see Libc.
func (m *Machine) WriteString(at uint64, s string) error {
	begin, err := m.Alloc(uint64(len(s)) + 1)
	if err == nil {
		err = m.write(begin, append([]byte(s), 0))
	}
	for i, v := range []uint64{begin, uint64(len(s)), uint64(len(s))} { // the last: how many fit
		if err == nil {
			err = m.writeUint(at+8*uint64(i), 8, v)
		}
	}
	return err
}
