package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// demoRecording is a recording of the real runtime on eight mock chips. scripts/record-demo.sh makes it.
//
//go:embed demo.ttm
var demoRecording []byte

func newDemo() *cobra.Command {
	var t targets
	var u uiFlags
	var save string
	cmd := &cobra.Command{
		Use: "demo", Short: "Show a recorded run on eight chips; needs no rights, device or runtime",
		Long: `Show a recorded run of the real runtime on eight Wormhole chips.

It needs no rights, device or runtime. --save writes the recording to a file instead,
to try report, log and status --from FILE with.`,
		Example: `  tt-memtrace demo
  tt-memtrace demo --save demo.ttm && tt-memtrace report demo.ttm`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if save != "" {
				if err := writeFile(save, func(w io.Writer) error { _, err := w.Write(demoRecording); return err }); err != nil {
					return fmt.Errorf("saving the recording: %w", err)
				}
				return nil
			}
			t.recorded.from = []string{"demo"}
			t.recorded.files = []io.ReadCloser{embedded{bytes.NewReader(demoRecording)}}
			return runTop(cmd, &t, &u, nil)
		},
	}
	t.recorded.flags(cmd)
	t.metrics.flags(cmd)
	t.sockets.flags(cmd)
	u.flags(cmd)
	u.topFlags(cmd)
	cmd.Flags().StringVar(&save, "save", "", "write the recording to `FILE` instead of showing it")
	return cmd
}

// embedded is an open file whose contents are part of this program.
type embedded struct{ *bytes.Reader }

func (embedded) Close() error { return nil }
