package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// shells maps the shells that have completion to the help that says how to set it up.
var shells = map[string]string{
	"bash": `Print the completion for bash, which needs the package bash-completion.

For this shell:
  source <(tt-memtrace completion bash)
For each new one:
  mkdir -p ~/.local/share/bash-completion/completions
  tt-memtrace completion bash > ~/.local/share/bash-completion/completions/tt-memtrace`,
	"zsh": `Print the completion for zsh.

For this shell, after 'autoload -U compinit; compinit':
  source <(tt-memtrace completion zsh)
For each new one, with 'fpath=(~/.zfunc $fpath)' before compinit in ~/.zshrc:
  mkdir -p ~/.zfunc
  tt-memtrace completion zsh > ~/.zfunc/_tt-memtrace`,
	"fish": `Print the completion for fish.

For this shell:
  tt-memtrace completion fish | source
For each new one:
  mkdir -p ~/.config/fish/completions
  tt-memtrace completion fish > ~/.config/fish/completions/tt-memtrace.fish`,
}

// completionOf replaces the help texts of cobra's completion command, and removes shells that Linux does not have.
func completionOf(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	c.Use, c.Short = "completion SHELL", "Print the completion for bash, zsh or fish"
	c.Long = `Print the completion for bash, zsh or fish. It completes commands, flags, recordings
and the PIDs of processes that use the runtime. The .deb and the .rpm install it;
otherwise 'completion SHELL --help' shows how to load it in each new shell.`
	c.Example = `  source <(tt-memtrace completion bash)              in bash, for this shell
  source <(tt-memtrace completion zsh)               in zsh
  tt-memtrace completion fish | source               in fish`
	for _, shell := range c.Commands() {
		long, ok := shells[shell.Name()]
		if !ok {
			c.RemoveCommand(shell)
			continue
		}
		shell.Short, shell.Long, shell.Args = "Print the completion for "+shell.Name(), long, noArgs
		if f := shell.Flags().Lookup("no-descriptions"); f != nil {
			f.Usage = "complete without descriptions"
		}
	}
	// By default cobra prints the help for an unknown shell, and exits with 0.
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("%w: there is completion for bash, zsh and fish, not %q\nsee '%s --help'", errUsage, args[0], cmd.CommandPath())
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}
