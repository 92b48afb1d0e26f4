package metal

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// What is taken from the blocks that are kept is what the file has, at its end and across two blocks too.
func TestFileBlocksReadWhatTheFileHas(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 40*fileBlockBytes+100)
	for i := range want {
		want[i] = byte(random.Uint32())
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	blocks := &fileBlocks{file: file}
	for range 20_000 {
		at := random.IntN(len(want) + 50)
		got := make([]byte, 1+random.IntN(2*smallPiece))
		n, err := blocks.ReadAt(got, int64(at))
		rest := want[min(at, len(want)):]
		if n != min(len(rest), len(got)) || !bytes.Equal(got[:n], rest[:n]) || (err == nil) != (n == len(got)) || n < len(got) && err != io.EOF {
			t.Fatalf("%d bytes at %d: read %d, %v", len(got), at, n, err)
		}
	}
	if _, err := blocks.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("what is before the file was read")
	}
}
