package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tt-memtrace/internal/record"
	"tt-memtrace/internal/report"
)

// hostFiles are the recordings of one host or, by run, of one run of a host, in order of time.
type hostFiles struct {
	host  string
	run   uint64 // of the last file; 0 if unknown
	files []string
}

// byHost groups recordings by the host in their headers. The hosts are in the order of their first files. Standard input can be
// read only once, so its header is not read: if it is among the files, all count as one host's.
func byHost(files []string) ([]hostFiles, error) { return groupFiles(files, false) }

// byRun does what byHost does, but recordings of one host that were made one by one are several runs: each begins and
// ends by itself, and nothing between them is missing. The files of a recording that was rotated are one run.
func byRun(files []string) ([]hostFiles, error) { return groupFiles(files, true) }

func groupFiles(files []string, runs bool) ([]hostFiles, error) {
	if len(files) < 2 || slices.Contains(files, "-") {
		return []hostFiles{{files: files}}, nil
	}
	type recording struct {
		name   string
		header record.Header
	}
	var all []recording
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("opening the recording: %w", err)
		}
		r, err := record.NewReader(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		all = append(all, recording{name, *r.Header()})
	}
	slices.SortStableFunc(all, func(x, y recording) int { return x.header.Began.Compare(y.header.Began) })
	var hosts []hostFiles
	for _, r := range all {
		i := slices.IndexFunc(hosts, func(h hostFiles) bool {
			return h.host == r.header.Host && (!runs || h.run == r.header.Run || h.run == 0 || r.header.Run == 0)
		})
		if i < 0 {
			i, hosts = len(hosts), append(hosts, hostFiles{host: r.header.Host, run: r.header.Run})
		}
		hosts[i].files = append(hosts[i].files, r.name)
	}
	return hosts, nil
}

// inOrder returns recordings of one host in order of time. It does not change the order of recordings of several hosts, nor if one
// is not a regular file, which cannot be read twice.
func inOrder(files []string) ([]string, error) {
	if slices.ContainsFunc(files, func(name string) bool {
		st, err := os.Stat(name)
		return err == nil && !st.Mode().IsRegular()
	}) {
		return files, nil
	}
	hosts, err := byHost(files)
	if err != nil || len(hosts) > 1 {
		return files, err
	}
	return hosts[0].files, nil
}

// eachHost runs f for the recordings of each host, as many at a time as there are CPUs. It stops at the first error other than a
// lossError. If there are only lossErrors, it returns the first host's.
func eachHost(ctx context.Context, t *targets, hosts []hostFiles, f func(ctx context.Context, i int, t *targets) error) error {
	lost := make([]error, len(hosts))
	var read atomic.Int32
	several := len(hosts) > 1
	if several && !t.quiet {
		defer standardError.every(func() string { return fmt.Sprintf("reading: %d of %d hosts", read.Load(), len(hosts)) })()
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, h := range hosts {
		g.Go(func() error {
			one := *t
			one.recorded.from, one.recorded.ofSeveral = h.files, several
			defer read.Add(1)
			err := f(ctx, i, &one)
			if onlyLoss(err) {
				lost[i], err = err, nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	i := slices.IndexFunc(lost, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return lost[i]
}

// reportHosts returns a report on the recordings of several hosts or runs. With a lossError it returns the report, too.
func reportHosts(ctx context.Context, t *targets, hosts []hostFiles) (*report.Hosts, error) {
	reports, recordings := make([]*report.Report, len(hosts)), make([][]string, len(hosts))
	err := eachHost(ctx, t, hosts, func(ctx context.Context, i int, t *targets) (err error) {
		recordings[i] = hosts[i].files
		reports[i], err = makeReport(ctx, t, nil, false)
		return err
	})
	if err != nil && !onlyLoss(err) {
		return nil, err
	}
	return report.Merge(reports, recordings), err
}

// hostsFormats maps formats to functions that write a report of several hosts.
var hostsFormats = map[string]func(*report.Hosts, io.Writer) error{
	"text": func(h *report.Hosts, w io.Writer) error { return h.Text(w, textStyle(w)) }, "json": (*report.Hosts).JSON,
}

func hostNames(hosts []hostFiles) string {
	var names []string
	for _, h := range hosts {
		if name := printable(h.host); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
