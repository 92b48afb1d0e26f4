package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const rootLong = `tt-memtrace shows what the memory of every Tenstorrent chip holds and which process
allocated it, live, for all programs on this host that use the TT-Metal runtime.
Programs need not be rebuilt or restarted.

Every live command takes the same targets:
  (none)            all processes of the host
  -p PID            one process, even before it loads the runtime
  -- CMD ARGS       a command and its children, from their first allocation
  --from FILE       a recording instead of live processes; needs no rights

Exit codes:
  0  success
  1  failure
  2  wrong usage
  3  not permitted
  4  library not supported
  5  finished, but the numbers, or the output of log, record or report, are incomplete
If CMD fails, its own exit code is returned, or 128+N if signal N ended it.`

const rootExample = `  sudo tt-memtrace                         show all processes, live
  sudo tt-memtrace -p 4711                 show one process
  sudo tt-memtrace -- pytest -x tests/     start a command and show it
  sudo tt-memtrace status --json           print one snapshot for scripts
  sudo tt-memtrace log | grep L1           print a line for every allocation and free
  sudo tt-memtrace record run.ttm          record, to replay or report later
  sudo tt-memtrace report -- python x.py   report peaks, leaks and churn of a command
  tt-memtrace demo                         show a recorded run; needs no rights
  sudo tt-memtrace forward                 send to an allocation server
  sudo tt-memtrace serve                   run an allocation server
  sudo tt-memtrace exporter                serve metrics to Prometheus
  sudo tt-memtrace doctor                  show what works here and what does not`

func newRoot() *cobra.Command {
	var t targets
	var u uiFlags
	root := &cobra.Command{
		Use:   "tt-memtrace [flags] [-- CMD ARGS...]",
		Short: "Show live what every Tenstorrent chip's memory holds, and who allocated it",
		Long:  rootLong, Example: rootExample,
		SilenceErrors: true, SilenceUsage: true,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return runTop(cmd, &t, &u, args) },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %s\nsee '%s --help'", errUsage, flagProblem(cmd, err), cmd.CommandPath())
	})
	root.Version = version()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	t.flags(root)
	t.shmFlag(root)
	u.flags(root)
	u.topFlags(root)
	root.AddCommand(newTop(), newStatus(), newLog(), newRecord(), newReplay(), newReport(), newExport(), newDemo(), newForward(), newServe(), newExporter(), newDoctor(), newConfig(), newMan(), newVersion())
	for _, c := range append(root.Commands(), root) {
		c.Args = noStrayValue(c.Args)
		c.SuggestFor = otherNames[c.Name()]
	}
	root.SetHelpCommand(newHelp())
	root.SetUsageFunc(usage)
	configFlag(root)
	nameValues(root)
	completionOf(root)
	return root
}

// otherNames are what other tools call the commands. If a user tries one, the error suggests the command.
var otherNames = map[string][]string{
	"doctor": {"check", "verify"}, "exporter": {"metrics", "prometheus"}, "log": {"events", "tail"}, "record": {"capture", "trace"},
	"report": {"diff", "leaks", "peaks"}, "status": {"ps", "snapshot"}, "top": {"tui", "ui", "watch"},
}

// execute runs the command line.
func execute(ctx context.Context, root *cobra.Command) error {
	// With --help and an unknown command, cobra by default prints the help of all commands, and returns no error.
	var unknown error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if words := cmd.Flags().Args(); cmd == root && len(words) > 0 {
			unknown = onlyCommand(cmd, words)
		}
		if unknown == nil {
			help(cmd, args)
		}
	})
	return cmp.Or(root.ExecuteContext(ctx), unknown)
}

// newHelp returns the command help. It replaces cobra's, which prints the help of all commands for an unknown command, and returns
// no error.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command",
		Long: "Show the help of a command, as COMMAND --help does. Without a command, show that of tt-memtrace.",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) (names []string, _ cobra.ShellCompDirective) {
			of, err := helped(cmd.Root(), args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, c := range of.Commands() {
				if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), begun) {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := helped(cmd.Root(), args)
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}

// helped returns the command with these names, or an error that suggests another.
func helped(cmd *cobra.Command, names []string) (*cobra.Command, error) {
	for _, name := range names {
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
		if i < 0 {
			meant := didYouMean("", cmd.SuggestionsFor(name))
			if meant != "" {
				meant = "; " + meant
			}
			return nil, fmt.Errorf("%w: unknown command %q%s\nsee '%s --help'", errUsage, name, meant, cmd.CommandPath())
		}
		cmd = cmd.Commands()[i]
	}
	return cmd, nil
}

// noStrayValue refuses "--sample 1s": because --sample needs no value, pflag accepts one only behind =.
func noStrayValue(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, words []string) error {
		if f := cmd.Flags().Lookup("sample"); f != nil && f.Changed && f.Value.String() == f.NoOptDefVal {
			before := words
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				before = words[:dash]
			}
			for _, w := range before {
				if _, err := time.ParseDuration(w); err == nil {
					return fmt.Errorf("%w: --sample takes its value behind =: --sample=%s\nsee '%s --help'", errUsage, w, cmd.CommandPath())
				}
			}
		}
		if args == nil {
			return nil
		}
		return args(cmd, words)
	}
}

// noArgs accepts no arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%w: unexpected argument %q\nsee '%s --help'", errUsage, args[0], cmd.CommandPath())
}

// onlyCommand accepts only arguments behind --.
func onlyCommand(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	if dash == 0 || len(args) == 0 && dash < 0 {
		if dash == 0 && len(args) == 0 {
			return fmt.Errorf("%w: no command after --", errUsage)
		}
		return nil
	}
	meant := didYouMean("", cmd.SuggestionsFor(args[0]))
	if meant != "" {
		meant += " "
	}
	path := cmd.CommandPath()
	if pid, err := strconv.ParseUint(args[0], 10, 32); err == nil {
		return fmt.Errorf("%w: unexpected argument %q; to trace a process: %s -p %d\nsee '%s --help'", errUsage, args[0], path, pid, path)
	}
	if from := cmd.Flags().Lookup("from"); meant == "" && from != nil && from.Changed {
		return fmt.Errorf("%w: unexpected argument %q; each recording has a flag: --from FILE --from %s\n"+
			"see '%s --help'", errUsage, args[0], shellWords(args[:1]), path)
	}
	return fmt.Errorf("%w: unknown command %q; %sto trace a program, put it after --: %s -- %s\nsee '%s --help'",
		errUsage, args[0], meant, path, shellWords(args), path)
}

// shellWords returns words as a line for a shell, quoted where necessary.
func shellWords(words []string) string {
	var out []string
	for _, w := range words {
		if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./=:,@%+", r)
		}) {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out = append(out, printable(w))
	}
	return strings.Join(out, " ")
}

// asCommand returns the command that a user probably meant with words in place of recordings: a Python script, or a command in
// $PATH that is no file here. It returns nil if they are no command.
func asCommand(words []string) []string {
	switch _, err := os.Stat(words[0]); {
	case strings.HasSuffix(words[0], ".py"):
		return append([]string{"python"}, words...)
	case err == nil:
		return nil
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return nil
	}
	return words
}

// flagProblem returns what is wrong with a flag, with a suggestion if there is one.
func flagProblem(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name, short := unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames() != ""
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !short {
				names = append(names, f.Name)
			}
		})
		meant := didYouMean("--", similar(name, names))
		if meant == "" {
			meant = didYouMean("", elsewhere(cmd.Root(), name, short))
		}
		if meant != "" {
			return err.Error() + "; " + meant
		}
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand
		}
		if why := valueProblem(f, invalid.Unwrap()); why != "" {
			return fmt.Sprintf("invalid argument %q for %s: %s", invalid.GetValue(), name, why)
		}
	}
	return err.Error()
}

// otherTools maps flags of other tools to what does the same here.
var otherTools = map[string]string{
	"interval": "status --every", "delay": "status --every", "watch": "status --every", "d": "status --every", "once": "status", "batch": "status",
}

// elsewhere returns one text with the commands that have a flag, and the flag; nil if none has it.
func elsewhere(root *cobra.Command, name string, short bool) []string {
	find, dashes := (*pflag.FlagSet).Lookup, "--"
	if short {
		find, dashes = (*pflag.FlagSet).ShorthandLookup, "-"
	}
	var names []string
	for _, c := range root.Commands() {
		if f := find(c.Flags(), name); f != nil && !f.Hidden && c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if n := len(names); n > 2 {
		names = append([]string{strings.Join(names[:n-1], ", ")}, names[n-1])
	}
	switch {
	case len(names) > 0:
		return []string{strings.Join(names, " or ") + " " + dashes + name}
	case otherTools[name] != "":
		return []string{otherTools[name]}
	}
	return nil
}

// valueProblem returns why a flag does not take a value; "" if the flag's own error is clear.
func valueProblem(f *pflag.Flag, cause error) string {
	var number *strconv.NumError
	if !errors.As(cause, &number) {
		if f.Value.Type() == "duration" {
			return "not a duration such as 500ms, 90s or 1h20m"
		}
		return ""
	}
	what := "not a whole number of at least 0"
	switch f.Value.Type() {
	case "uintSlice":
		what = "not a PID"
	case "float64":
		what = "not a number"
	case "bool":
		what = "neither true nor false"
	}
	if errors.Is(number.Err, strconv.ErrRange) && number.Func != "ParseBool" {
		what = "out of range"
	}
	return what
}

// similar returns those of the names that a user may have meant with a word.
func similar(word string, names []string) []string {
	c := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, n := range names {
		c.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	return c.SuggestionsFor(word)
}

// didYouMean returns a question whether one of the names was meant; "" if there are none. before precedes each name.
func didYouMean(before string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "did you mean " + before + strings.Join(names, " or "+before) + "?"
}

// noSuch returns an error about an unknown value of a kind, such as a format, with the known ones.
func noSuch(kind, value string, names []string) error {
	meant := didYouMean("", similar(value, names))
	if meant != "" {
		meant += " "
	}
	return fmt.Errorf("%w: there is no %s %q: %sthere are %s", errUsage, kind, value, meant, strings.Join(names, ", "))
}

// takesRecordings completes the arguments of a command with recordings.
func takesRecordings(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{recordingSuffix}, cobra.ShellCompDirectiveFilterFileExt
	}
}

// recordingSuffix is the suffix of recordings' names.
const recordingSuffix = "ttm"
