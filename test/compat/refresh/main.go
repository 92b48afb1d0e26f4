// Command refresh makes the compatibility set again from the published releases,
// and the documentation from the set. It says what is new and what changed.
package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tt-memtrace/internal/metal"
	"tt-memtrace/test/compat"
)

func main() {
	document := flag.Bool("document", false, "only write docs/compatibility.md, from the set as it is")
	libraries := flag.String("libraries", "", "take the libraries from this folder, as VERSION/FILE, and keep there what is downloaded")
	parallel := flag.Int("parallel", 3, "downloads at a time")
	flag.Parse()
	run := func() error { return refresh(*libraries, *parallel) }
	if *document {
		run = writeDocument
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "refresh: %v\n", err)
		os.Exit(1)
	}
}

// root is the top folder of the project.
func root() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("this is not inside the project")
		}
	}
	return "", err
}

func writeDocument() error {
	dir, err := root()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := compat.Document(&b); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "docs", "compatibility.md"), b.Bytes(), 0o644)
}

// found is a release that was looked at.
type found struct {
	release compat.Release
	cut     *compat.Sparse
	summary string
}

func refresh(libraries string, parallel int) error {
	dir, err := root()
	if err != nil {
		return err
	}
	before := map[string]compat.Release{} // by version
	for _, r := range compat.Releases() {
		before[r.Version] = r
	}
	old, err := compat.Libraries()
	if err != nil {
		return err
	}
	listed, err := published()
	if err != nil {
		return err
	}
	versions := slices.Clone(listed)
	for v := range before {
		if !slices.Contains(versions, v) {
			versions = append(versions, v) // withdrawn: it may still be there for those who ask
		}
	}
	var mu sync.Mutex
	var all []found
	var failed []error
	queue := make(chan string)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for v := range queue {
				f, err := look(v, libraries)
				mu.Lock()
				if r, known := before[v]; err != nil && known && !slices.Contains(listed, v) {
					fmt.Printf("gone: %s, which stays in the set\n", v)
					all = append(all, found{release: r, cut: old[r.BuildID]})
				} else if err != nil {
					failed = append(failed, fmt.Errorf("%s: %w", v, err))
				} else {
					all = append(all, f)
				}
				mu.Unlock()
			}
		})
	}
	for _, v := range versions {
		queue <- v
	}
	close(queue)
	workers.Wait()
	slices.SortFunc(all, func(a, b found) int { return compareVersions(a.release.Version, b.release.Version) })

	set := map[string]*compat.Sparse{}
	table := "release\tfile\tbuild-id\n"
	for _, f := range all {
		r := f.release
		set[r.BuildID] = f.cut
		table += fmt.Sprintf("%s\t%s\t%s\n", r.Version, r.File, r.BuildID)
		switch was, ok := before[r.Version]; {
		case !ok:
			fmt.Printf("new: %s, build-id %s\n", r.Version, r.BuildID)
			for line := range strings.Lines(f.summary) {
				if strings.HasPrefix(line, "missing ") {
					fmt.Print("  ", line)
				}
			}
		case was != r:
			fmt.Printf("changed: %s has the build-id %s in %s, and had %s in %s\n", r.Version, r.BuildID, r.File, was.BuildID, was.File)
		}
		if strings.Contains(f.summary, "refused:") {
			fmt.Printf("not supported: %s\n%s", r.Version, f.summary)
		}
	}
	fmt.Printf("%d releases, %d builds\n", len(all), len(set))
	if len(failed) > 0 {
		return fmt.Errorf("nothing was written: %w", errors.Join(failed...))
	}
	here := filepath.Join(dir, "test", "compat")
	var z bytes.Buffer
	if err := compat.Pack(&z, set); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(here, "libraries.zip"), z.Bytes(), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(here, "releases.tsv"), []byte(table), 0o644); err != nil {
		return err
	}
	// This program has the old set in it.
	cmd := exec.Command("go", "generate", "./test/compat")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	return cmd.Run()
}

// target are pip's options for the machine that the releases are for.
var target = []string{"--only-binary=:all:", "--python-version", "3.10", "--platform", "manylinux_2_34_x86_64"}

// published are the versions that the package index lists.
func published() ([]string, error) {
	out, err := exec.Command("python3", append([]string{"-m", "pip", "index", "versions", "ttnn", "--pre"}, target...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("listing releases: %w", err)
	}
	_, list, ok := strings.Cut(string(out), "Available versions: ")
	if !ok {
		return nil, fmt.Errorf("listing releases: pip says %q", out)
	}
	list, _, _ = strings.Cut(list, "\n")
	return strings.Split(list, ", "), nil
}

// names of the file with the runtime's code, newest first.
var names = []string{"libtt_metal.so", "_ttnncpp.so"}

// look downloads a release, cuts its library, and checks that the cut one says the same.
func look(version, libraries string) (found, error) {
	work, err := os.MkdirTemp("", "tt-memtrace-compat-")
	if err != nil {
		return found{}, err
	}
	defer os.RemoveAll(work)
	path := kept(libraries, version)
	if path == "" {
		into := work
		if libraries != "" {
			into = filepath.Join(libraries, version)
		}
		if path, err = download(version, work, into); err != nil {
			return found{}, err
		}
	}
	report, err := metal.Examine(path)
	if err != nil {
		return found{}, err
	}
	defer report.Library.Close()
	if report.Library.BuildID == "" {
		return found{}, errors.New("its library has no build-id")
	}
	f := found{release: compat.Release{Version: version, File: filepath.Base(path), BuildID: report.Library.BuildID}, summary: compat.Summary(report)}
	if f.cut, err = compat.Cut(path); err != nil {
		return found{}, err
	}
	cut := filepath.Join(work, "cut.so")
	if err := f.cut.WriteFile(cut); err != nil {
		return found{}, err
	}
	again, err := metal.Examine(cut)
	if err != nil {
		return found{}, err
	}
	defer again.Library.Close()
	if s := compat.Summary(again); s != f.summary {
		return found{}, fmt.Errorf("the cut library is not reported as the whole is:\n%s", difference(s, f.summary))
	}
	return f, nil
}

// difference are the lines that only one of two texts has.
func difference(a, b string) string {
	var d strings.Builder
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, line := range x {
		if !slices.Contains(y, line) {
			fmt.Fprintf(&d, "- %s\n", line)
		}
	}
	for _, line := range y {
		if !slices.Contains(x, line) {
			fmt.Fprintf(&d, "+ %s\n", line)
		}
	}
	return d.String()
}

// kept is the path of a library that is there already, or "".
func kept(libraries, version string) string {
	if libraries == "" {
		return ""
	}
	for _, name := range names {
		path := filepath.Join(libraries, version, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// download gets a release and keeps of it the library only.
func download(version, work, into string) (string, error) {
	args := append([]string{"-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, "ttnn==" + version}, target...)
	if out, err := exec.Command("python3", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("downloading: %w: %s", err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(work, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("downloading: %d files came", len(wheels))
	}
	defer os.Remove(wheels[0])
	z, err := zip.OpenReader(wheels[0])
	if err != nil {
		return "", fmt.Errorf("unpacking: %w", err)
	}
	defer z.Close()
	for _, name := range names {
		in, err := z.Open("ttnn/build/lib/" + name)
		if err != nil {
			continue
		}
		defer in.Close()
		if err := os.MkdirAll(into, 0o755); err != nil {
			return "", err
		}
		path := filepath.Join(into, name)
		out, err := os.Create(path)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(out, in)
		return path, errors.Join(err, out.Close())
	}
	return "", fmt.Errorf("unpacking: none of %q is in it", names)
}

var versionParts = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?(?:\.dev(\d+))?`)

// compareVersions orders versions as Python does: 1.0.0rc1.dev1, 1.0.0rc1, 1.0.0.
func compareVersions(a, b string) int {
	key := func(v string) (k [5]int) {
		m := versionParts.FindStringSubmatch(v)
		for i := range k {
			k[i] = 1 << 30 // not a candidate, not in development
			if m != nil && m[i+1] != "" {
				k[i], _ = strconv.Atoi(m[i+1])
			}
		}
		return k
	}
	x, y := key(a), key(b)
	return cmp.Or(slices.Compare(x[:], y[:]), cmp.Compare(a, b))
}
