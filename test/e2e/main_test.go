package e2e

import (
	"os"
	"testing"

	"tt-memtrace/test/fixture"
)

func TestMain(m *testing.M) {
	remove := fixture.Share()
	code := m.Run()
	remove()
	os.Exit(code)
}
