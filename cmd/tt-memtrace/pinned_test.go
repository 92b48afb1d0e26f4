package main

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tt-memtrace/test/pinned"
	"tt-memtrace/test/schema"
)

var update = flag.Bool("update", false, "write testdata")

// Scripts, units and configuration files use commands and flags; exit codes decide what they do next. A flag is also a key of the
// configuration file and a variable.
func TestCommandLineIsFixed(t *testing.T) {
	codes := map[string]int{"fine": exitFine, "failed": exitFailed, "wrong usage": exitUsage, "not permitted": exitPermission,
		"library not supported": exitUnsupported, "something lacks": exitLost}
	var names []string
	for what, code := range codes {
		names = append(names, fmt.Sprintf("exit code %d: %s", code, what))
	}
	slices.Sort(names)
	names = append(names, "configuration file "+defaultConfig, "variables "+environment)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		names = append(names, cmd.CommandPath())
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name := fmt.Sprintf("%s --%s %s", cmd.CommandPath(), f.Name, f.Value.Type())
			if f.Shorthand != "" {
				name += " -" + f.Shorthand
			}
			names = append(names, name)
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	pinned.Names(t, *update, "testdata/command-line.txt", names,
		"Scripts use it: keep a flag or command as a hidden one for two minor releases; an exit code keeps its meaning", "An addition is free")
}

func TestKeysOfDoctorAreFixed(t *testing.T) {
	pinned.Names(t, *update, "testdata/doctor-keys.txt", schema.Keys(t, schema.Of(t, "", diagnosis{}, false)),
		"Scripts read it: another name, type or null where there was none increases doctorSchema", "An addition is free")
}
