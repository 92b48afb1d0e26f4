package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	yamlparser "github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const (
	// defaultConfig is read if no other file is named. It may be missing.
	defaultConfig = "/etc/tt-memtrace/config.yaml"
	// environment is the prefix of variables that set flags.
	environment = "TT_MEMTRACE_"
	// maxConfig bounds the file, bytes.
	maxConfig = 1 << 20
)

// settings are the values of flags that the command line does not set: from the environment or, second, from the file.
type settings struct {
	path string // of the file, whether it exists or not
	file *koanf.Koanf
	env  func(string) (string, bool) // os.LookupEnv
}

// readSettings reads the file: path or, if that is "", $TT_MEMTRACE_CONFIG or the default one.
func readSettings(path string, env func(string) (string, bool)) (*settings, error) {
	s := &settings{path: path, file: koanf.New("."), env: env}
	if s.path == "" {
		s.path, _ = env(environment + "CONFIG")
	}
	named := s.path != ""
	if !named {
		s.path = defaultConfig
	}
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = fmt.Errorf("more than %d bytes", maxConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration %s: %w", s.path, err)
	}
	if err := s.file.Load(rawbytes.Provider(b), yamlparser.Parser()); err != nil {
		return nil, fmt.Errorf("%w: reading the configuration %s: %w", errUsage, s.path, err)
	}
	return s, nil
}

// configurable lists the flags of a command that settings can set. --pid is not one: a PID means nothing on another day.
func configurable(cmd *cobra.Command) []*pflag.Flag {
	var list []*pflag.Flag
	switch section(cmd) {
	case "config", "completion", "doctor", "help", "man", "version":
		return nil
	}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains([]string{"help", "version", "pid"}, f.Name) && !f.Hidden {
			list = append(list, f)
		}
	})
	return list
}

// section returns a command's name in the file; that of tt-memtrace without a command is top.
func section(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return "top"
	}
	return cmd.Name()
}

// commands lists the commands that have configurable flags.
func commands(root *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, c := range root.Commands() {
		if len(configurable(c)) > 0 {
			list = append(list, c)
		}
	}
	return list
}

// variables returns the environment variables that set a flag of a command: that for the command first, then that for all.
func variables(cmd *cobra.Command, flag string) []string {
	upper := func(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
	return []string{environment + upper(section(cmd)) + "_" + upper(flag), environment + upper(flag)}
}

// keys returns the keys of the file that set a flag of a command, in the same order.
func keys(cmd *cobra.Command, flag string) []string { return []string{section(cmd) + "." + flag, flag} }

// check returns an error for each key of the file that sets no flag.
func (s *settings) check(root *cobra.Command) error {
	known := map[string]bool{}
	for _, c := range commands(root) {
		known[section(c)] = true
		for _, f := range configurable(c) {
			for _, k := range keys(c, f.Name) {
				known[k] = true
			}
		}
	}
	var errs []error
	for _, k := range s.file.Keys() {
		if !known[k] {
			errs = append(errs, fmt.Errorf("%s: the key %q sets nothing", s.path, printable(k)))
		}
	}
	return errors.Join(errs...)
}

// strays lists the environment variables that have the prefix of settings but set no flag.
func strays(root *cobra.Command, environ []string) []string {
	known := map[string]bool{environment + "CONFIG": true}
	for _, c := range commands(root) {
		for _, f := range configurable(c) {
			for _, v := range variables(c, f.Name) {
				known[v] = true
			}
		}
	}
	var list []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, environment) && !known[name] {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// apply sets the flags that the command line has not set. It returns the origin of each flag's value; "" for a default.
func (s *settings) apply(cmd *cobra.Command) (origins map[string]string, err error) {
	origins = map[string]string{}
	var errs []error
	for _, f := range configurable(cmd) {
		if f.Changed {
			origins[f.Name] = "command line"
			continue
		}
		values, origin, err := s.find(cmd, f)
		if err == nil && origin != "" {
			err = set(f, values)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", origin, err))
		}
		origins[f.Name] = origin
	}
	return origins, errors.Join(errs...)
}

// find returns a flag's values and their origin; origin is "" if nothing sets the flag.
func (s *settings) find(cmd *cobra.Command, f *pflag.Flag) (values []string, origin string, err error) {
	for _, name := range variables(cmd, f.Name) {
		if v, ok := s.env(name); ok {
			if _, many := f.Value.(pflag.SliceValue); many {
				return strings.Split(v, ","), name, nil
			}
			return []string{v}, name, nil
		}
	}
	for _, k := range keys(cmd, f.Name) {
		if !s.file.Exists(k) {
			continue
		}
		if _, of := s.file.Get(k).(map[string]any); of {
			continue // a command has the same name as the flag, and these are its settings; check verifies them
		}
		origin = s.path + ": " + k
		switch v := s.file.Get(k).(type) {
		case nil:
			return nil, origin, errors.New("no value")
		case []any:
			if _, many := f.Value.(pflag.SliceValue); !many {
				return nil, origin, errors.New("one value is wanted, not a list")
			}
			for _, one := range v {
				values = append(values, fmt.Sprint(one))
			}
			return values, origin, nil
		default:
			return []string{fmt.Sprint(v)}, origin, nil
		}
	}
	return nil, "", nil
}

// set sets a flag. It returns an error that says what is wrong with the values.
func set(f *pflag.Flag, values []string) (err error) {
	if many, ok := f.Value.(pflag.SliceValue); ok {
		err = many.Replace(values)
	} else {
		err = f.Value.Set(values[0])
	}
	if err == nil {
		f.Changed = true
	} else if why := valueProblem(f, err); why != "" {
		return fmt.Errorf("%q: %s", strings.Join(values, ","), why)
	}
	return err
}

// configFlag adds --config, and applies the settings before each command runs.
func configFlag(root *cobra.Command) {
	var path string
	root.PersistentFlags().StringVar(&path, "config", "",
		"read the configuration from `FILE` (default "+defaultConfig+")")
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if len(configurable(cmd)) == 0 {
			return nil
		}
		s, err := readSettings(path, os.LookupEnv)
		if err != nil {
			return err
		}
		_, err = s.apply(cmd)
		return misconfigured(s.check(root), err)
	}
}

func newConfig() *cobra.Command {
	return &cobra.Command{
		Use:   "config [flags] [COMMAND | -- COMMAND FLAGS...]",
		Short: "Print and check the configuration in effect",
		Long: `Print the configuration in effect, with the origin of each value, and fail if it has
errors. The output is a valid configuration file.

Flags override environment variables, which override the configuration file
(default ` + defaultConfig + `). A setting for one command overrides
one for all commands:
  file          FLAG: VALUE at the top, or below the name of a COMMAND
  environment   TT_MEMTRACE_FLAG or TT_MEMTRACE_COMMAND_FLAG, with _ for -`,
		Example: `  tt-memtrace config
  TT_MEMTRACE_RING_BUFFER_BYTES=67108864 tt-memtrace config exporter
  tt-memtrace config -- exporter --listen :9947`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := cmd.Flags().GetString("config")
			if err != nil {
				return err
			}
			s, err := readSettings(path, os.LookupEnv)
			if err != nil {
				return err
			}
			return printConfig(cmd.OutOrStdout(), s, os.Environ(), args)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range commands(cmd.Root()) {
				names = append(names, c.Name())
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// printConfig prints the configuration of the command line args or, without one, of all commands. It returns what is wrong.
func printConfig(w io.Writer, s *settings, environ, args []string) error {
	root := newRoot() // a new one, because the flags of the running one are set
	list := commands(root)
	if len(args) > 0 {
		cmd, rest, err := root.Find(args)
		if err != nil || len(configurable(cmd)) == 0 || cmd == root {
			return fmt.Errorf("%w: %q is no command that can be configured", errUsage, args[0])
		}
		if err := cmd.ParseFlags(rest); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		list = []*cobra.Command{cmd}
	}
	errs := []error{s.check(root)}
	for _, v := range strays(root, environ) {
		errs = append(errs, fmt.Errorf("the variable %s sets nothing", printable(v)))
	}
	all := &yaml.Node{Kind: yaml.MappingNode}
	for _, cmd := range list {
		origins, err := s.apply(cmd)
		if err == nil && cmd.PreRunE != nil {
			err = cmd.PreRunE(cmd, nil)
		}
		errs = append(errs, err)
		one := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range configurable(cmd) {
			v := valueNode(f)
			if v.LineComment = origins[f.Name]; v.LineComment == "" {
				v.LineComment = "default"
			}
			one.Content = append(one.Content, scalar(f.Name), v)
		}
		all.Content = append(all.Content, scalar(section(cmd)), one)
	}
	var text bytes.Buffer
	e := yaml.NewEncoder(&text)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(all), e.Close()); err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	if _, err := w.Write(text.Bytes()); err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	return misconfigured(errs...)
}

// misconfigured joins errors of the configuration into one, without repeated lines; nil if there are none.
func misconfigured(errs ...error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	var said []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !slices.Contains(said, line) {
			said = append(said, line)
		}
	}
	return fmt.Errorf("%w, in the configuration:\n%s\nsee 'tt-memtrace config --help'", errUsage, strings.Join(said, "\n"))
}

func scalar(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

// valueNode returns a flag's value as YAML.
func valueNode(f *pflag.Flag) *yaml.Node {
	if many, ok := f.Value.(pflag.SliceValue); ok {
		n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, v := range many.GetSlice() {
			n.Content = append(n.Content, scalar(v))
		}
		return n
	}
	if f.Value.Type() == "string" {
		return scalar(f.Value.String())
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: f.Value.String()}
}
