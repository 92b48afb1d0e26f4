package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/session"
	"tt-memtrace/tracer"
)

// targets are the flags that say what to trace.
type targets struct {
	pids      []uint
	libraries []string
	ring      uint32
	quiet     bool
	shm       bool
	sockets   sockets
	metrics   metricsFlags
	stacks    bool
	// switchable means that the user can switch call stacks on later.
	switchable bool
	sampling   sampling
	// noArguments removes the arguments of commands from all that is shown, recorded and exported.
	noArguments bool
	// record is a file to record into, or "".
	record string
	// recording says how the recording is divided into files; nil if the command has no flags for that.
	recording *recordFlags
	recorded  recorded
}

// Sizes of the BPF ring buffer, bytes, without and with --stacks. An allocation takes about 100 bytes, with its stack 13,000.
const (
	defaultRing = tracer.DefaultRingBytes
	stackRing   = 128 << 20
)

func (t *targets) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	pidFlag(cmd, &t.pids, "trace only process `PID` (repeatable)")
	f.StringSliceVar(&t.libraries, "lib", nil, "treat `FILE` as the runtime, whatever its name (repeatable)")
	f.Uint32Var(&t.ring, "ring-buffer-bytes", defaultRing, "size of the BPF ring buffer in `BYTES`, a power of two")
	f.BoolVarP(&t.quiet, "quiet", "q", false, "print no notices to standard error")
	t.sampling.flags(cmd)
	t.metrics.flags(cmd)
	f.BoolVar(&t.stacks, "stacks", false, "record the call stack of each allocation and free, to show call sites")
	t.argumentsFlag(cmd)
	f.StringVar(&t.record, "record", "", "also record to `FILE`")
	f.StringSliceVar(&t.recorded.from, "from", nil, "read the recording `FILE` instead of live processes (repeatable)")
	t.recorded.flags(cmd)
	_ = cmd.MarkFlagFilename("lib", "so")
	_ = cmd.MarkFlagFilename("from", recordingSuffix)
	_ = cmd.MarkFlagFilename("record", recordingSuffix)
	t.sockets.flags(cmd)
	grouped(cmd, targetFlags, "pid", "lib", "ring-buffer-bytes", "stacks")
	grouped(cmd, outputFlags, "quiet", "record")
}

func (t *targets) argumentsFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.noArguments, "no-arguments", false,
		"omit the arguments of command lines from all output and recordings")
	grouped(cmd, outputFlags, "no-arguments")
}

func pidFlag(cmd *cobra.Command, pids *[]uint, usage string) {
	f := cmd.Flags()
	f.UintSliceVarP(pids, "pid", "p", nil, usage)
	f.Lookup("pid").DefValue = "" // help would say [] otherwise
	_ = cmd.RegisterFlagCompletionFunc("pid", completePIDs)
}

// completePIDs completes PIDs with the processes that map the runtime.
func completePIDs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var list []string
	for pid, command := range discover.Users() {
		list = append(list, strconv.FormatUint(uint64(pid), 10)+"\t"+command)
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// check returns what is wrong with the flags and the command, or nil.
func (t *targets) check(command []string) error {
	if err := t.checkShm(command); err != nil {
		return err
	}
	if len(t.pids) > 0 && len(command) > 0 {
		return fmt.Errorf("%w: -p and -- CMD cannot be used together", errUsage)
	}
	if len(t.recorded.from) > 0 && len(t.pids)+len(command)+len(t.libraries) > 0 {
		return fmt.Errorf("%w: --from cannot be used with -p, --lib or -- CMD", errUsage)
	}
	if err := t.checkSampling(); err != nil {
		return err
	}
	if err := t.recorded.check(); err != nil {
		return err
	}
	if err := t.metrics.check(); err != nil {
		return err
	}
	if traced := len(t.recorded.from) == 0; traced && (t.ring < 4096 || t.ring&(t.ring-1) != 0) {
		return fmt.Errorf("%w: --ring-buffer-bytes %d is not a power of two of at least 4096", errUsage, t.ring)
	}
	if len(command) > 0 {
		if _, err := exec.LookPath(command[0]); err != nil {
			return fmt.Errorf("starting %s: %w", command[0], err)
		}
	}
	if _, err := t.recording.options(t.record); err != nil {
		return err
	}
	return t.sockets.check()
}

// start returns a session of the targets with everything that the flags ask for. It attaches no probe; run does.
func (t *targets) start(command []string) (*live, error) {
	if err := t.check(command); err != nil {
		return nil, err
	}
	l, err := t.trace(command)
	if err != nil {
		return nil, err
	}
	l.NoArguments = t.noArguments
	return t.beside(l, command)
}

// briefly traces for a moment. It calls look once probes are attached and what the processes held before was read.
func (t *targets) briefly(ctx context.Context, look func(*live)) error {
	l, err := t.start(nil)
	if err != nil {
		return err
	}
	l.brief = true
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.run(ctx) }()
	select {
	case <-l.Ready():
	case err := <-done:
		return err
	}
	look(l)
	cancel()
	return <-done
}

// beside adds to a session what flags of all live commands ask for: metrics, sockets, a recording. If it fails, it closes the
// session.
func (t *targets) beside(l *live, command []string) (*live, error) {
	if err := t.metrics.add(l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l, err := t.sockets.join(l)
	if err != nil {
		return nil, err
	}
	if t.record != "" {
		o, err := t.recording.options(t.record)
		if err == nil {
			_, err = l.record(o, t.label(command))
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// untilAsked tells the user of a command that prints nothing what it waits for: ^C or, with PIDs, the end of these
// processes. A recording or a traced command ends by itself.
func (t *targets) untilAsked(l *live, doing string) {
	switch {
	case l.player != nil || len(l.command) > 0:
	case len(t.pids) == 0:
		l.notice(fmt.Sprintf(doing, "all processes") + ", until ^C")
	default:
		l.notice(fmt.Sprintf(doing, "PID "+strings.Trim(fmt.Sprint(t.pids), "[]")) + ", until its end or ^C")
	}
}

// label returns a few words about what is shown.
func (t *targets) label(command []string) string { return t.labelAt(command, t.sampling.every) }

// shown returns the part of a command line that may be shown and recorded.
func (t *targets) shown(command string) string {
	if t.noArguments {
		return session.Program(command)
	}
	return command
}

// labelAt returns the label with this sampling interval; 0 is not sampled.
func (t *targets) labelAt(command []string, every time.Duration) string {
	switch {
	case len(t.recorded.from) > 0:
		return t.recorded.label()
	case t.shm:
		return sharedMemory
	}
	what := "live"
	switch {
	case len(command) > 0:
		what = t.shown(strings.Join(command, " "))
	case len(t.pids) > 0:
		what = "pid " + strings.Trim(fmt.Sprint(t.pids), "[]")
	}
	if every > 0 {
		sampled := "sampled " + every.String()
		if what == "live" {
			return sampled
		}
		return sampled + ", " + what
	}
	return what
}

// trace returns a session with the source alone.
func (t *targets) trace(command []string) (*live, error) {
	if len(t.recorded.from) > 0 {
		return t.recorded.start(t.quiet)
	}
	if t.shm {
		return t.read()
	}
	if t.sampling.every > 0 {
		return t.sampled(command)
	}
	return t.probedOrSampled(command)
}

// probed returns a session that traces the targets with probes.
func (t *targets) probed(command []string) (*live, error) {
	if err := tracer.CheckRights(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, shmHint)
	}
	l := newLive(command, t.quiet)
	if t.stacks && t.ring == defaultRing {
		t.ring = stackRing
	}
	o := tracer.Options{Libraries: t.libraries, RingBytes: t.ring, Stacks: t.stacks || t.switchable, StacksPaused: !t.stacks, Notice: l.notice}
	var err error
	if o.PIDs, err = checkPIDs(t.pids); err != nil {
		return nil, err
	}
	if len(command) > 0 {
		o.Follow = uint32(os.Getpid())
	}
	tr, err := tracer.New(o)
	if err != nil {
		return nil, err
	}
	l.tracer, l.waiting = &tracerSource{Tracer: tr}, tr.Waiting
	l.AddSource(l.tracer)
	return l, nil
}

// waited lists the given PIDs; the screen may have to wait until these processes use the runtime. A recording has none.
func (t *targets) waited() (list []uint32) {
	if len(t.recorded.from) > 0 {
		return nil
	}
	for _, pid := range t.pids {
		list = append(list, uint32(pid))
	}
	return list
}

// checkPIDs converts PIDs. It fails unless all these processes exist and may be traced.
func checkPIDs(pids []uint) ([]uint32, error) {
	var list []uint32
	for _, pid := range pids {
		if pid > math.MaxInt32 {
			return nil, fmt.Errorf("tracing PID %d: no such process", pid)
		}
		if err := tracer.CheckPID(uint32(pid)); err != nil {
			return nil, err
		}
		list = append(list, uint32(pid))
	}
	return list, nil
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return h
}
