package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const rootLong = `tt-memtrace shows live what every Tenstorrent chip's memory holds, and which
process put it there: for any program on this host that uses the TT-Metal
runtime, without rebuilding or restarting it.

Targets, the same for every live command:
  (none)            all processes of the host
  -p PID            only these processes; they may load the runtime later
  -- CMD ARGS       start this command and trace it and all its children from
                    their first allocation
  --from FILE       a recording in place of processes: needs no rights

Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 not permitted, 4 library not
supported, 5 finished but events were lost. With -- CMD, a command that fails
passes its own status on, 128+N if signal N ended it.`

const rootExample = `  sudo tt-memtrace                         everything on the host, live
  sudo tt-memtrace -p 4711                 one process
  sudo tt-memtrace -- pytest -x tests/     a command from its first allocation
  sudo tt-memtrace status --json           one snapshot for scripts
  sudo tt-memtrace log | grep L1           a line for every allocation and free
  sudo tt-memtrace record run.ttm          record, to replay and report later
  sudo tt-memtrace report -- python x.py   peaks, leaks and churn of a command
  tt-memtrace demo                         a recorded run, without any rights
  sudo tt-memtrace forward                 tell an allocation server
  sudo tt-memtrace serve                   be the allocation server
  sudo tt-memtrace exporter                for Prometheus and OpenTelemetry
  sudo tt-memtrace doctor                  what works here, and what does not`

func newRoot() *cobra.Command {
	var t targets
	var u uiFlags
	root := &cobra.Command{
		Use:   "tt-memtrace [flags] [-- CMD ARGS...]",
		Short: "Show live what every Tenstorrent chip's memory holds, and who put it there",
		Long:  rootLong, Example: rootExample,
		SilenceErrors: true, SilenceUsage: true,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return runTop(cmd, &t, &u, args) },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w\nsee '%s --help'", errUsage, err, cmd.CommandPath())
	})
	root.Version = version()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	t.flags(root)
	t.shmFlag(root)
	u.flags(root)
	u.topFlags(root)
	root.AddCommand(newTop(), newStatus(), newLog(), newRecord(), newReplay(), newReport(), newDemo(), newForward(), newServe(), newExporter(), newDoctor(), newConfig(), newMan(), newVersion())
	configFlag(root)
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil { // for other shells it would print its help, and be fine
		c.Args, c.RunE = noArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	return root
}

// noArgs accepts no arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%w: unexpected argument %q\nsee '%s --help'", errUsage, args[0], cmd.CommandPath())
}

// onlyCommand accepts arguments behind -- only.
func onlyCommand(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	if dash == 0 || len(args) == 0 && dash < 0 {
		if dash == 0 && len(args) == 0 {
			return fmt.Errorf("%w: no command behind --", errUsage)
		}
		return nil
	}
	meant := ""
	if list := cmd.SuggestionsFor(args[0]); len(list) > 0 {
		meant = fmt.Sprintf("did you mean %s? ", strings.Join(list, " or "))
	}
	return fmt.Errorf("%w: unknown command %q; %sto trace a program, put it behind --: tt-memtrace -- %s\nsee '%s --help'",
		errUsage, args[0], meant, args[0], cmd.CommandPath())
}
