package discover

import (
	"os"
	"testing"

	"tt-memtrace/test/fixture"
)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }
