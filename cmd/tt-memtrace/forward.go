package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"tt-memtrace/internal/plural"
	"tt-memtrace/internal/session"
	"tt-memtrace/internal/wire"
)

// sockets are the flags of live commands for the original protocol.
type sockets struct {
	// forward is the socket of the server to send to, serve the socket to listen on; "" for none.
	forward, serve string
	size           string
	open           bool
	// lines, if not nil, is where the server prints the original server's lines.
	lines io.Writer
}

// autoSize is the value of --forward-record-size for querying the server for it.
const autoSize = "auto"

func (s *sockets) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	switch cmd.Name() {
	case "forward":
		f.StringVar(&s.forward, "socket", wire.DefaultSocket, "send to the server at this `SOCKET`")
		s.sizeFlag(cmd)
	case "serve":
		f.StringVar(&s.serve, "socket", wire.DefaultSocket, "listen at this `SOCKET`")
		f.StringVar(&s.forward, "forward", "", "also send traced allocations to the allocation server at this `SOCKET`")
		f.BoolVar(&s.open, "serve-all-users", false, "let all users of the host connect, not only you and root")
		s.sizeFlag(cmd)
	default:
		f.StringVar(&s.forward, "forward", "", "also send traced allocations to the allocation server at this `SOCKET`")
		f.StringVar(&s.serve, "serve", "", "also run an allocation server at this `SOCKET`")
		f.BoolVar(&s.open, "serve-all-users", false,
			"with --serve, let all users of the host connect, not only you and root")
		s.sizeFlag(cmd)
		grouped(cmd, serverFlags, "forward", "serve", "serve-all-users", "forward-record-size")
	}
}

func (s *sockets) sizeFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.size, "forward-record-size", autoSize,
		"size of a record in `BYTES`: 72, 112, 128, 144, or auto to ask the server")
	_ = cmd.RegisterFlagCompletionFunc("forward-record-size", cobra.FixedCompletions([]string{autoSize, "72", "112", "128", "144"}, cobra.ShellCompDirectiveNoFileComp))
}

// recordSize returns the size of the server's records; 0 for auto.
func (s *sockets) recordSize() (wire.Size, error) {
	if s.size == autoSize {
		return 0, nil
	}
	n, err := strconv.Atoi(s.size)
	if err != nil || !wire.Size(n).Valid() {
		return 0, fmt.Errorf("%w: --forward-record-size %s is not auto, 72, 112, 128 or 144", errUsage, s.size)
	}
	return wire.Size(n), nil
}

func (s *sockets) check() error {
	if _, err := s.recordSize(); err != nil {
		return err
	}
	if s.forward != "" && same(s.forward, s.serve) {
		return fmt.Errorf("%w: a server cannot forward to itself", errUsage)
	}
	return nil
}

// same reports whether two paths are equal once they are absolute.
func same(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

// join adds the forwarder and the server to a session. If it fails, it closes the session.
func (s *sockets) join(l *live) (*live, error) {
	if s.serve != "" {
		if err := s.addServer(l); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	if s.forward != "" {
		if err := s.addForwarder(l); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

func (s *sockets) addForwarder(l *live) error {
	size, err := s.recordSize()
	if err != nil {
		return err
	}
	journal, err := journalPath(s.forward)
	if err != nil {
		return fmt.Errorf("forwarding to %s: %w", s.forward, err)
	}
	f, err := wire.NewForwarder(wire.ForwarderOptions{Path: s.forward, Size: size, Accounts: l.Accounts(), Wall: l.Wall, Journal: journal, Notice: l.notice})
	if err != nil {
		return err
	}
	l.AddSink(session.Sink{
		Event: f.Event, Change: f.Change, Learned: f.Learned, CB: f.CBChange, Kernel: f.KernelChange,
		Close: func() error {
			err := f.Close()
			l.notice(forwarded(s.forward, f.Statistics()))
			return err
		},
	})
	return nil
}

// forwarded returns a notice about what was sent.
func forwarded(path string, n wire.ForwarderStatistics) string {
	if n.Connections == 0 {
		return fmt.Sprintf("forwarding to %s: no server ever answered", path)
	}
	text := fmt.Sprintf("forwarded %s to %s, %d dropped", plural.Of(n.Sent, "record"), path, n.Dropped)
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{n.Private, "of chips in a process's own numbering"}, {n.Beyond, "of devices that the server does not have"},
		{n.Unplaced, "of devices whose chips were not known"}, {n.Unsized, "of kernels whose size is not known"},
	} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d not sent %s", c.n, c.what)
		}
	}
	return text
}

// journalPath returns the file with the list of what was sent to the server at a socket. It need not survive a reboot.
func journalPath(socket string) (string, error) {
	dir := os.Getenv("RUNTIME_DIRECTORY") // from systemd
	switch {
	case dir != "":
	case os.Geteuid() == 0:
		dir = "/run/tt-memtrace"
	case os.Getenv("XDG_RUNTIME_DIR") != "":
		dir = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tt-memtrace")
	default:
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "tt-memtrace")
	}
	absolute, err := filepath.Abs(socket)
	if err != nil {
		return "", err
	}
	h := fnv.New64a()
	h.Write([]byte(absolute))
	return filepath.Join(dir, fmt.Sprintf("forward-%016x", h.Sum64())), nil
}

func newForward() *cobra.Command {
	var t targets
	cmd := &cobra.Command{
		Use:   "forward [flags] [-- CMD ARGS...]",
		Short: "Send traced allocations to an existing allocation server, until ^C",
		Long: `Send all traced allocations and frees to an existing allocation server, until ^C, so
that it and its monitors work with an unchanged runtime. Live buffers are sent first.

If the server is absent, exits or is too slow, tt-memtrace continues to trace, waits
for it, and then sends all live buffers again. At the end the server keeps what it was sent until the
processes end, or until the next tt-memtrace forwards to it.

Every live command takes --forward PATH to forward as well.`,
		Example: `  sudo tt-memtrace forward
  sudo tt-memtrace forward --socket /run/alloc.sock --forward-record-size 144 -p 4711
  sudo tt-memtrace top --forward /tmp/tt_allocation_server.sock`,
		Args: onlyCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := t.start(args)
			if err != nil {
				return err
			}
			return l.run(cmd.Context())
		},
	}
	t.flags(cmd)
	_ = cmd.MarkFlagFilename("socket")
	return cmd
}
