package metal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Content says what a file of any name contains of the runtime.
type Content int

const (
	// NoCode: none of the runtime's code, though the file may use it.
	NoCode Content = iota
	// HiddenCode: the runtime's code, without the symbols that show where it is.
	HiddenCode
	// RuntimeCode: the file defines the symbols that make it the runtime.
	RuntimeCode
)

// HiddenText says what is known of a file with HiddenCode, and what helps.
const HiddenText = "has the runtime's code, but not its symbols; --shm shows the totals that the runtime itself keeps"

// allocatorText is in the runtime's allocator in all releases, and in no file that only uses the runtime.
const allocatorText = "Out of Memory: Not enough space to allocate"

// maxSearched bounds how much of a file is searched, bytes.
const maxSearched = 512 << 20

// Search looks for the runtime's code in a file, whatever its name. It reads all of the file, up to maxSearched; over
// reports that the time is up. The file at path is opened by name.
func Search(name, path string, over func() bool) (Content, error) {
	f, st, err := openRegular(name)
	if err != nil {
		return NoCode, err
	}
	defer f.Close()
	if st.Size > maxSearched {
		return NoCode, fmt.Errorf("searching %s: %d bytes, more than %d", path, st.Size, maxSearched)
	}
	text := []byte(allocatorText)
	overlap := len(text) - 1
	for _, s := range RuntimeSymbols {
		overlap = max(overlap, len(s)-1)
	}
	b := make([]byte, 1<<20)
	kept, named, said := 0, false, false
	for !named {
		if over() {
			return NoCode, fmt.Errorf("searching %s: no time is left", path)
		}
		n, err := io.ReadFull(f, b[kept:])
		part := b[:kept+n]
		named = namesRuntime(part)
		said = said || bytes.Contains(part, text)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return NoCode, fmt.Errorf("searching %s: %w", path, err)
		}
		kept = copy(b, part[len(part)-overlap:])
	}
	if named {
		lib, err := OpenFile(name, path)
		if err == nil {
			defer lib.Close()
			if lib.IsRuntime() {
				return RuntimeCode, nil
			}
		}
	}
	if said {
		return HiddenCode, nil
	}
	return NoCode, nil
}
