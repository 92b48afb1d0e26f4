package tracer

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"tt-memtrace/test/fixture"
)

// helperEnv makes the test binary one of the helpers instead.
const helperEnv = "TT_MEMTRACE_TEST_HELPER"

// helpers run in a process of their own.
var helpers = map[string]func(args []string) error{
	"attach":         helpAttach,
	"checkpid":       helpCheckPID,
	"rights":         helpRights,
	"maps":           helpMaps,
	"user namespace": helpUserNamespace,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	onIllegal = func(what string) { panic(what) }
	os.Exit(fixture.Main(m))
}

// helper is the command that runs one of the helpers.
func helper(name string, args ...string) *exec.Cmd {
	// By this name also another user can run it, whatever folder it lies in.
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}
