// Record runs a script of the test rig on mock chips, and records an image of its process at a rest point.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"tt-memtrace/internal/discover"
	"tt-memtrace/internal/inspect"
	"tt-memtrace/internal/memory"
	"tt-memtrace/internal/metal"
	"tt-memtrace/internal/proc"
	"tt-memtrace/test/image"
	"tt-memtrace/test/rig"
)

func main() {
	release := flag.String("release", "0.81.1", "of the runtime")
	cluster := flag.String("cluster", "n150", "of mock chips")
	rest := flag.Int("rest", 1, "which rest point, from 1")
	child := flag.Bool("child", false, "record the process's child, which has copies of what it holds")
	out := flag.String("o", "test/image/images.zst", "the set of images, to which this one is added")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: record [flags] SCRIPT [ARGS]")
		os.Exit(2)
	}
	if err := record(*release, *cluster, *rest, *child, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func record(release, cluster string, rest int, child bool, out string, ran []string) error {
	ctx := context.Background()
	runtime, err := rig.Install(ctx, release)
	if err != nil {
		return err
	}
	w, err := runtime.Start(ctx, rig.Options{Cluster: cluster, Script: ran[0], Args: ran[1:]})
	if err != nil {
		return err
	}
	defer w.Close()
	var said rig.Message
	for n := 1; ; n++ {
		if said, err = w.Rest(5 * time.Minute); err != nil {
			return fmt.Errorf("%w: %s", err, w.Stderr())
		}
		if n == rest {
			break
		}
		if err := w.Send("go"); err != nil {
			return err
		}
	}
	pid := uint32(w.PID())
	if said.PID != 0 {
		pid = uint32(said.PID)
	}
	if child {
		if pid, err = childOf(pid); err != nil {
			return err
		}
	}
	finder, err := discover.FinderOf(nil)
	if err != nil {
		return err
	}
	list, err := finder.Mappings(pid)
	if err != nil {
		return err
	}
	for _, m := range list {
		lib, read, err := metal.OpenRecorded(m.Path)
		if err != nil {
			return err
		}
		defer lib.Close()
		layout, err := lib.Layout()
		if errors.Is(err, metal.ErrUnsupported) {
			continue
		}
		if err != nil {
			return err
		}
		r := image.Record(pid, proc.ForkedFrom(m))
		held := image.Scan(inspect.NewOver(memory.From(pid, r), lib, m), layout, pid, r.Fork())
		if held.Err != nil || len(held.Devices) == 0 && !child {
			fmt.Println(m.Path, held.Err)
			continue
		}
		i, err := r.End(m, read(), said)
		if err != nil {
			return err
		}
		i.Copies = child
		i.Release, i.Cluster, i.Ran = release, cluster, strings.Join(ran, " ")
		set, err := image.All()
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s on %s, %s, rest %d", release, cluster, i.Ran, rest)
		if child {
			name += ", the child"
		}
		set[name] = i
		var b bytes.Buffer
		if err := image.Write(&b, set); err != nil {
			return err
		}
		if err := os.WriteFile(out, b.Bytes(), 0o644); err != nil {
			return err
		}
		fmt.Printf("%d buffers, %d programs, %d pages; not read: %v, %v\n", len(held.Scan.Buffers), len(held.Programs),
			len(i.Pages), held.Failed, held.Unsearched)
		fmt.Printf("%d images in %d bytes\n", len(set), b.Len())
		return nil
	}
	return errors.New("it holds no devices")
}

// childOf returns the only child of a process.
func childOf(pid uint32) (child uint32, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err == nil {
		_, err = fmt.Sscan(string(b), &child)
	}
	return child, err
}
