package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tt-memtrace/ui"
)

// uiFlags say how things are shown.
type uiFlags struct {
	ascii     bool
	requested bool
	exit      bool
}

func (u *uiFlags) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&u.ascii, "ascii", ui.NeedsASCII(os.Getenv), "draw with ASCII characters only")
	cmd.Flags().BoolVar(&u.requested, "requested", false, "show what was asked for, not what the banks lost to it")
}

func (u *uiFlags) topFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&u.exit, "exit", false, "leave the panels when the traced command or the last traced PID ends")
}

func newTop() *cobra.Command {
	var t targets
	var u uiFlags
	cmd := &cobra.Command{
		Use:   "top [flags] [-- CMD ARGS...]",
		Short: "Show the live panels (the default)",
		Args:  onlyCommand,
		RunE:  func(cmd *cobra.Command, args []string) error { return runTop(cmd, &t, &u, args) },
	}
	t.flags(cmd)
	u.flags(cmd)
	u.topFlags(cmd)
	return cmd
}

func runTop(cmd *cobra.Command, t *targets, u *uiFlags, args []string) error {
	if !term.IsTerminal(int(os.Stdout.Fd())) {
		return fmt.Errorf("%w: the panels need a terminal; 'tt-memtrace status' and 'tt-memtrace log' write text", errUsage)
	}
	l, err := t.start(args)
	if err != nil {
		return err
	}
	l.silent = true
	if len(args) > 0 {
		// The screen is taken: the command's output waits in a file until it is free again.
		out, err := os.CreateTemp("", "tt-memtrace-output-")
		if err != nil {
			return errors.Join(fmt.Errorf("keeping the command's output: %w", err), l.source.Close())
		}
		os.Remove(out.Name())
		defer out.Close()
		l.output = out
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.run(ctx) }()
	source := "live"
	switch {
	case len(args) > 0:
		source = strings.Join(args, " ")
	case len(t.pids) > 0:
		source = "pid " + strings.Trim(fmt.Sprint(t.pids), "[]")
	}
	screen, leave := context.WithCancel(cmd.Context())
	defer leave()
	if u.exit {
		go func() {
			select {
			case <-l.ended:
				leave()
			case <-screen.Done():
			}
		}()
	}
	err = ui.Run(screen, l, ui.Options{
		Host: hostname(), Source: source, Notes: l.Notices, ASCII: u.ascii, Done: l.ended,
	})
	cancel()
	if e := <-done; err == nil {
		err = e
	}
	if len(args) > 0 {
		// What is left when the panels are gone: the command's words, then the table.
		if _, e := l.output.Seek(0, io.SeekStart); e == nil {
			_, e = io.Copy(os.Stdout, l.output)
			err = cmp.Or(err, e)
		}
		if e := ui.Text(os.Stdout, l.Snapshot(), u.text()); err == nil {
			err = e
		}
	}
	return err
}

// text is how the same is shown as plain text.
func (u *uiFlags) text() ui.TextOptions {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		width = 120
	}
	return ui.TextOptions{Width: width, Requested: u.requested, ASCII: u.ascii, Host: hostname(), Time: time.Now()}
}
