package main

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version; the linker sets it when a release is built.
var release = "dev"

// version returns the release and, if the build recorded the commit and the release does not contain it, the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && !strings.Contains(release, s.Value[:12]) {
			return release + " (" + s.Value[:12] + ")"
		}
	}
	return release
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "tt-memtrace "+version())
			return err
		},
	}
}
