package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups of flags in --help. Flags of a single command have no group.
const (
	targetFlags   = "Targets"
	outputFlags   = "Output"
	replayFlags   = "Recordings"
	rotationFlags = "Files of a recording"
	serverFlags   = "Servers and metrics"
	otherFlags    = "Other flags"
)

// groups has the groups in the order of --help. Flags without a group come first.
var groups = []string{targetFlags, outputFlags, replayFlags, rotationFlags, serverFlags, otherFlags}

// Annotations of flags: the group, and the name of the value in --help.
const (
	groupAnnotation = "tt_memtrace_group"
	valueAnnotation = "tt_memtrace_value"
)

// grouped puts the flags with these names, of those that the command has, into a group.
func grouped(cmd *cobra.Command, group string, names ...string) {
	for _, name := range names {
		if f := cmd.Flags().Lookup(name); f != nil {
			annotate(f, groupAnnotation, group)
		}
	}
}

func annotate(f *pflag.Flag, key, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = []string{value}
}

func annotation(f *pflag.Flag, key string) string {
	if list := f.Annotations[key]; len(list) > 0 {
		return list[0]
	}
	return ""
}

// nameValues moves the names of values, which usages have in back quotes, into annotations: completion and the manual would show
// the back quotes.
func nameValues(root *cobra.Command) {
	name := func(f *pflag.Flag) {
		if value, usage := pflag.UnquoteUsage(f); usage != f.Usage {
			f.Usage = usage
			annotate(f, valueAnnotation, value)
		}
	}
	root.PersistentFlags().VisitAll(name)
	for _, c := range append(root.Commands(), root) {
		c.Flags().VisitAll(name)
	}
}

// named is a flag's value with the name of the value in --help as its type.
type named struct {
	pflag.Value
	name string
}

func (n named) Type() string { return n.name }

// inHelp returns a copy of a flag as --help shows it.
func inHelp(f *pflag.Flag) *pflag.Flag {
	name, shown := annotation(f, valueAnnotation), *f
	switch kind := f.Value.Type(); {
	case kind == "bool":
		return f
	case f.NoOptDefVal != "":
		name = "" // --sample[=1s]: the value comes behind = only
	case kind == "duration":
		name = "TIME"
	case name == "":
		return f
	}
	if f.DefValue == "0s" || f.DefValue == "[]" {
		shown.DefValue = ""
	}
	shown.Value = named{f.Value, name}
	return &shown
}

// flagGroups returns the visible flags of a command, by group.
func flagGroups(cmd *cobra.Command) map[string]*pflag.FlagSet {
	byGroup := map[string]*pflag.FlagSet{}
	add := func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		group := annotation(f, groupAnnotation)
		if f.Name == "help" || f.Name == "version" || f.Name == "config" {
			group = otherFlags
		}
		if byGroup[group] == nil {
			byGroup[group] = pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		byGroup[group].AddFlag(inHelp(f))
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	if own, other := byGroup[""], byGroup[otherFlags]; len(byGroup) == 2 && own != nil && other != nil || len(byGroup) == 1 && other != nil {
		if own == nil {
			own = pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		own.AddFlagSet(other)
		byGroup = map[string]*pflag.FlagSet{"": own}
	}
	return byGroup
}

// usage writes the same as cobra's default, but with the flags in groups.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if cmd.Runnable() {
		fmt.Fprintf(&b, "\n  %s", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n  %s [command]", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\n\nExamples:\n%s", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n\nCommands:")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				fmt.Fprintf(&b, "\n  %-*s %s", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	byGroup := flagGroups(cmd)
	for _, group := range append([]string{""}, groups...) {
		if flags := byGroup[group]; flags != nil {
			title := group
			if group == "" {
				title = "Flags"
			}
			fmt.Fprintf(&b, "\n\n%s:\n%s", title, strings.TrimRight(flags.FlagUsages(), "\n"))
		}
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\n'%s [command] --help' says more about a command.", cmd.CommandPath())
	}
	_, err := io.WriteString(cmd.OutOrStderr(), b.String()+"\n")
	return err
}
