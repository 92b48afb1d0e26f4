//go:build packages

package packaging

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"tt-memtrace/test/fixture"
	"tt-memtrace/test/rig"
	"tt-memtrace/tracer"
)

// patience bounds every wait; it is not expected to be reached.
const patience = 2 * time.Minute

// suite is the Debian that the packages are tried in.
const suite = "bookworm"

func needs(t *testing.T, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this takes root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed: scripts/deps.sh packages", p)
		}
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// packages builds the .deb and the .rpm of a version.
func packages(t *testing.T, version string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "dist")
	cmd := exec.Command(root+"packaging/build.sh", dir)
	cmd.Env = append(os.Environ(), "VERSION="+version)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", version, err, out)
	}
	return dir
}

func deb(dir, version string) string { return filepath.Join(dir, "tt-memtrace_"+version+"_amd64.deb") }

// debian is a clean one, with systemd, in a folder.
func debian(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tt-memtrace-debian-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	command(t, "mmdebstrap", "--quiet", "--variant=minbase", "--include=systemd,systemd-sysv,dbus,libstdc++6", suite, dir)
	return dir
}

// tree is every file of a root with what it is and has.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, dir)
		files[name] = info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files[name] += fmt.Sprintf(" %x", sha256.Sum256(b))
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(path)
			files[name] += " " + to
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// differences between two trees, but for what the package managers note for themselves.
func differences(before, after map[string]string) []string {
	own := regexp.MustCompile(`^/var/lib/dpkg/(status|status-old|available|lock|triggers/.*)$|^/var/log/(dpkg|alternatives)\.log$|^/var/(lib|cache)/rpm(/|$)|^/var/cache/ldconfig`)
	var list []string
	for name, is := range after {
		if was, there := before[name]; !own.MatchString(name) && (!there || was != is) {
			list = append(list, "new or changed: "+name)
		}
	}
	for name := range before {
		if _, there := after[name]; !there && !own.MatchString(name) {
			list = append(list, "gone: "+name)
		}
	}
	slices.Sort(list)
	return list
}

// What the package brings goes with it, upgraded or not, enabled or not.
func TestRemovedWithoutATrace(t *testing.T) {
	needs(t, "mmdebstrap", "chroot")
	one, two, dir := packages(t, "1.0.0"), packages(t, "1.1.0"), debian(t)
	before := tree(t, dir)
	debs := filepath.Join(dir, "root")
	for _, from := range []string{deb(one, "1.0.0"), deb(two, "1.1.0")} {
		command(t, "cp", from, debs)
	}
	in := func(args ...string) string { return command(t, "chroot", append([]string{dir}, args...)...) }
	in("dpkg", "-i", "/root/tt-memtrace_1.0.0_amd64.deb")
	if said := in("tt-memtrace", "version"); !strings.Contains(said, "1.0.0") {
		t.Error(said)
	}
	in("systemctl", "enable", "tt-memtrace")
	in("dpkg", "-i", "/root/tt-memtrace_1.1.0_amd64.deb")
	if said := in("tt-memtrace", "version"); !strings.Contains(said, "1.1.0") {
		t.Error(said)
	}
	if said := in("systemctl", "is-enabled", "tt-memtrace"); !strings.Contains(said, "enabled") {
		t.Errorf("an upgrade has left it %s", said)
	}
	for _, f := range []string{"/usr/share/man/man1/tt-memtrace-exporter.1.gz", "/usr/share/bash-completion/completions/tt-memtrace",
		"/usr/share/zsh/vendor-completions/_tt-memtrace", "/usr/share/fish/vendor_completions.d/tt-memtrace.fish",
		"/etc/tt-memtrace/config.yaml", "/usr/share/doc/tt-memtrace/copyright"} {
		if _, err := os.Stat(dir + f); err != nil && !strings.Contains(f, "/man/") && !strings.Contains(f, "/doc/") {
			t.Error(err) // a minimal Debian may leave out manuals and documents
		}
	}
	// A configuration that was changed is kept until it is purged.
	if err := os.WriteFile(dir+"/etc/tt-memtrace/config.yaml", []byte("quiet: true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	in("dpkg", "--remove", "tt-memtrace")
	if b, err := os.ReadFile(dir + "/etc/tt-memtrace/config.yaml"); err != nil || string(b) != "quiet: true\n" {
		t.Errorf("%q, %v", b, err)
	}
	in("dpkg", "--purge", "tt-memtrace")
	for _, from := range []string{"1.0.0", "1.1.0"} {
		os.Remove(deb(debs, from))
	}
	if left := differences(before, tree(t, dir)); len(left) > 0 {
		t.Errorf("%d differences: %v", len(left), left)
	}

	// The .rpm, in an empty root of rpm's own.
	needs(t, "rpm")
	empty := t.TempDir()
	rpm := func(args ...string) string {
		return command(t, "rpm", append([]string{"--root", empty, "--dbpath", "/var/lib/rpm"}, args...)...)
	}
	rpm("--initdb")
	before = tree(t, empty)
	rpm("-i", "--nodeps", "--noscripts", filepath.Join(one, "tt-memtrace-1.0.0-1.x86_64.rpm"))
	rpm("-U", "--nodeps", "--noscripts", filepath.Join(two, "tt-memtrace-1.1.0-1.x86_64.rpm"))
	if said := command(t, empty+"/usr/bin/tt-memtrace", "version"); !strings.Contains(said, "1.1.0") {
		t.Error(said)
	}
	rpm("-V", "--nodeps", "tt-memtrace")
	rpm("-e", "--noscripts", "tt-memtrace")
	left := slices.DeleteFunc(differences(before, tree(t, empty)), func(s string) bool {
		// Folders that belong to the system's own packages, which are not there.
		return !strings.Contains(s, "tt-memtrace")
	})
	if len(left) > 0 {
		t.Errorf("the .rpm leaves %v", left)
	}
}

// machine is a booted Debian, with a network of its own.
type machine struct {
	t      *testing.T
	leader string
}

func boot(t *testing.T, dir string) *machine {
	t.Helper()
	cmd := exec.Command("systemd-nspawn", "--quiet", "--directory="+dir, "--boot", "--register=no", "--keep-unit", "--private-network",
		// What a host's own systemd has.
		"--capability=CAP_BPF,CAP_PERFMON,CAP_SYS_PTRACE,CAP_DAC_READ_SEARCH,CAP_SYS_ADMIN",
		"--system-call-filter=bpf perf_event_open process_vm_readv")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	m := &machine{t: t}
	t.Cleanup(func() {
		if m.leader != "" {
			exec.Command("nsenter", "--target", m.leader, "--all", "systemctl", "--no-block", "poweroff").Run()
		}
		select {
		case <-exited:
		case <-time.After(20 * time.Second):
			cmd.Process.Kill() // and with it its PID 1
			<-exited
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	eventually(t, "it has booted", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err != nil || len(bytes.Fields(children)) == 0 {
			return false
		}
		leader := string(bytes.Fields(children)[0])
		out, _ := exec.Command("nsenter", "--target", leader, "--all", "systemctl", "is-system-running").Output()
		if state := strings.TrimSpace(string(out)); state != "running" && state != "degraded" {
			return false
		}
		m.leader = leader
		return true
	})
	return m
}

func (m *machine) try(args ...string) (string, error) {
	out, err := exec.Command("nsenter", append([]string{"--target", m.leader, "--all"}, args...)...).CombinedOutput()
	return string(out), err
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		journal, _ := m.try("journalctl", "--no-pager", "--unit", "tt-memtrace")
		m.t.Fatalf("%v: %v\n%s\n%s", args, err, out, journal)
	}
	return out
}

// scrape is what the service answers. The thread that enters the machine's
// network is not used again.
func (m *machine) scrape() (text string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var ns *os.File
		if ns, err = os.Open("/proc/" + m.leader + "/ns/net"); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", "127.0.0.1:9947", 5*time.Second); err != nil {
			return
		}
		text, err = request(conn)
	}()
	<-done
	return text, err
}

func request(conn net.Conn) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }},
		Timeout: 10 * time.Second}
	a, err := client.Get("http://127.0.0.1:9947/metrics")
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = errors.New(a.Status)
	}
	return string(b), err
}

func (m *machine) status(field string) string {
	m.t.Helper()
	pid := strings.TrimSpace(m.run("systemctl", "show", "--property=MainPID", "--value", "tt-memtrace"))
	_, rest, _ := strings.Cut(m.run("cat", "/proc/"+pid+"/status"), field+":")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// On a Debian that runs: installed, enabled, started, it samples from within its
// sandbox; upgraded it goes on; removed, it is gone. The machine has a PID namespace of its own, as
// systemd takes: there the service says that it cannot trace, and is not started again.
func TestServiceInAMachine(t *testing.T) {
	needs(t, "mmdebstrap", "systemd-nspawn", "nsenter", "g++")
	one, two, dir := packages(t, "1.0.0"), packages(t, "1.1.0"), debian(t)
	for _, from := range []string{deb(one, "1.0.0"), deb(two, "1.1.0")} {
		command(t, "cp", from, filepath.Join(dir, "root"))
	}
	programs := filepath.Join(dir, "opt/fixture")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := (fixture.Build{}).Library(programs); err != nil {
		t.Fatal(err)
	}
	if _, err := fixture.Driver(programs); err != nil {
		t.Fatal(err)
	}
	m := boot(t, dir)
	active := func() string {
		out, _ := m.try("systemctl", "is-active", "tt-memtrace")
		return strings.TrimSpace(out)
	}
	m.run("dpkg", "-i", "/root/tt-memtrace_1.0.0_amd64.deb")
	if a := active(); a != "inactive" {
		t.Errorf("installed, it is %s", a)
	}
	if out, err := m.try("systemctl", "enable", "--now", "tt-memtrace"); err == nil {
		t.Errorf("it was started, although it cannot trace here: %s", out)
	}
	if a, code := active(), m.run("systemctl", "show", "--property=ExecMainStatus", "--value", "tt-memtrace"); a != "failed" || strings.TrimSpace(code) != "3" {
		t.Errorf("it is %s with exit code %s", a, code)
	}
	if said := m.run("journalctl", "--no-pager", "--unit=tt-memtrace"); !strings.Contains(said, "PID namespace") {
		t.Errorf("it does not say why: %s", said)
	}
	// Sampling works for what can be seen here.
	settings := filepath.Join(dir, "etc/tt-memtrace/config.yaml")
	if err := os.WriteFile(settings, []byte("exporter:\n  sample: 100ms\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.run("systemctl", "restart", "tt-memtrace")
	if a := active(); a != "active" {
		t.Fatalf("started, it is %s", a)
	}

	// Exactly the unit's capabilities, another user, no new rights, filtered system calls.
	var mask uint64
	for _, c := range capabilities() {
		mask |= 1 << map[string]int{"cap_dac_read_search": unix.CAP_DAC_READ_SEARCH, "cap_sys_ptrace": unix.CAP_SYS_PTRACE,
			"cap_perfmon": unix.CAP_PERFMON, "cap_bpf": unix.CAP_BPF}[c]
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if got, err := strconv.ParseUint(m.status(set), 16, 64); err != nil || got != mask {
			t.Errorf("%s is %x, not %x (%v)", set, got, mask, err)
		}
	}
	if uid := strings.Fields(m.status("Uid")); uid[0] == "0" || m.status("NoNewPrivs") != "1" || m.status("Seccomp") != "2" {
		t.Errorf("user %v, no new privileges %s, seccomp %s", uid, m.status("NoNewPrivs"), m.status("Seccomp"))
	}
	said := m.run("systemd-analyze", "security", "--no-pager", "tt-memtrace")
	level := regexp.MustCompile(`Overall exposure level for tt-memtrace.service: ([0-9.]+)`).FindStringSubmatch(said)
	if level == nil || !strings.Contains(read(t, root+"docs/exporter.md"), level[1]+" while it runs") {
		t.Errorf("docs/exporter.md does not have the figure of the running service: %v", level)
	}

	// It reads what a process holds.
	driver := exec.Command("nsenter", "--target", m.leader, "--all", "/opt/fixture/driver")
	in, err := driver.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	defer driver.Wait()
	defer in.Close()
	var answered string // last
	defer func() {
		if t.Failed() {
			t.Log(answered)
		}
	}()
	has := func(line string) func() bool {
		pattern := regexp.MustCompile("(?m)^" + line + "$")
		return func() bool {
			text, err := m.scrape()
			answered = text
			time.Sleep(200 * time.Millisecond) // it answers five a second
			return err == nil && pattern.MatchString(text)
		}
	}
	fmt.Fprintln(in, "open /opt/fixture/libtt_metal.so")
	eventually(t, "the process is found", has("tt_memtrace_processes 1"))
	fmt.Fprintln(in, "device 0 3\nalloc 64 0 0 0 4096 1024 64\nalloc 64 0 0 0 4096 1024 128")
	eventually(t, "its buffers are seen", has(`tt_memtrace_process_buffers\{comm="driver",.*\} 2`))
	eventually(t, "its version is shown", has(`tt_memtrace_build_info\{version="1.0.0"\} 1`))

	// Upgraded while it runs and samples, with the settings that were changed.
	m.run("dpkg", "-i", "--force-confold", "/root/tt-memtrace_1.1.0_amd64.deb")
	if a := active(); a != "active" {
		t.Fatalf("upgraded, it is %s", a)
	}
	eventually(t, "the new version answers", has(`tt_memtrace_build_info\{version="1.1.0"\} 1`))
	eventually(t, "it finds the process again", has("tt_memtrace_processes 1"))
	fmt.Fprintln(in, "alloc 64 0 0 0 4096 1024 192")
	eventually(t, "it samples again", has(`tt_memtrace_process_buffers\{comm="driver",.*\} 3`))

	m.run("dpkg", "--purge", "tt-memtrace")
	if out, err := m.try("systemctl", "cat", "tt-memtrace"); err == nil {
		t.Errorf("the unit is still known: %s", out)
	}
	if _, err := m.scrape(); err == nil {
		t.Error("it still answers")
	}
	found := m.run("find", "/etc", "/usr", "/var", "/run", "/tmp", "-xdev", "-name", "*tt-memtrace*")
	if strings.TrimSpace(found) != "" {
		t.Errorf("it has left %s", found)
	}
}

// The bill of materials has every module that the packaged program is linked with.
func TestBillOfMaterials(t *testing.T) {
	dir := packages(t, "1.0.0")
	info, err := buildinfo.ReadFile(filepath.Join(dir, "tt-memtrace"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		BOMFormat string `json:"bomFormat"`
		Metadata  struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(dir, "tt-memtrace.cdx.json"))), &bill); err != nil {
		t.Fatal(err)
	}
	if of := bill.Metadata.Component; bill.BOMFormat != "CycloneDX" || of.Name != "tt-memtrace" || of.Version != "1.0.0" {
		t.Errorf("it is a bill of %+v", of)
	}
	versions := map[string]string{}
	for _, c := range bill.Components {
		versions[c.Name] = c.Version
	}
	for _, m := range info.Deps {
		if versions[m.Path] != m.Version {
			t.Errorf("%s is %q in the bill, not %s", m.Path, versions[m.Path], m.Version)
		}
	}
	if more := []string{versions["std"], versions["echarts"], versions["zrender"], versions["tslib"]}; len(bill.Components) != len(info.Deps)+4 || slices.Contains(more, "") {
		t.Errorf("%d components, %d modules, and %q", len(bill.Components), len(info.Deps), more)
	}
}

// Debian's own checker has nothing to say, but for what packaging/lintian-overrides explains.
func TestPackageIsClean(t *testing.T) {
	needs(t, "lintian")
	if out := command(t, "lintian", "--fail-on", "error,warning", "--allow-root", deb(packages(t, "1.0.0"), "1.0.0")); strings.TrimSpace(out) != "" {
		t.Error(out)
	}
}

// Kubernetes knows every field of the DaemonSet and what belongs to it.
func TestDaemonSetIsValid(t *testing.T) {
	// 1.30 is the first that knows all of them.
	built := filepath.Join(t.TempDir(), "built.yaml")
	command(t, "go", "run", "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1", "build", root+"packaging/kubernetes", "-o", built)
	command(t, "go", "run", "sigs.k8s.io/kubectl-validate@v0.0.4", "--version", "1.30", root+"packaging/kubernetes/tt-memtrace.yaml", built)
}

const definition = root + "packaging/container/Dockerfile"

// image builds it into a storage of the test's own, and returns how to run podman with that.
func image(t *testing.T, dir string) (podman func(args ...string) *exec.Cmd) {
	t.Helper()
	const locks = "/dev/shm/libpod_lock" // wherever its storage is
	if _, err := os.Stat(locks); err != nil {
		t.Cleanup(func() { os.Remove(locks) })
	}
	if err := tracer.CheckRights(); err != nil {
		t.Skip(err)
	}
	podman = func(args ...string) *exec.Cmd {
		return exec.Command("podman", append([]string{"--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs",
			"--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"}, args...)...)
	}
	if out, err := podman("build", "-f", definition, "-t", "tt-memtrace", packages(t, "1.0.0")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return podman
}

// unused is an address of this host that nothing listens on.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// podOf is the manifest's DaemonSet with its configuration, as the Pod that it makes on a node, with
// other addresses to listen on.
func podOf(t *testing.T, listen, health string) string {
	t.Helper()
	var out bytes.Buffer
	encode := yaml.NewEncoder(&out)
	for d := yaml.NewDecoder(strings.NewReader(read(t, root+"packaging/kubernetes/tt-memtrace.yaml"))); ; {
		var object map[string]any
		if err := d.Decode(&object); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch object["kind"] {
		case "ConfigMap":
			data := object["data"].(map[string]any)
			data["config.yaml"] = strings.NewReplacer(`":9947"`, listen, `":9948"`, health).Replace(data["config.yaml"].(string))
		case "DaemonSet":
			object = object["spec"].(map[string]any)["template"].(map[string]any)
			object["apiVersion"], object["kind"] = "v1", "Pod"
			object["metadata"].(map[string]any)["name"] = "tt-memtrace"
			spec := object["spec"].(map[string]any)
			spec["hostNetwork"] = true
			container := spec["containers"].([]any)[0].(map[string]any)
			container["image"] = "localhost/tt-memtrace:latest"
			// Podman runs it in the container, with curl. A kubelet asks from outside.
			delete(container, "livenessProbe")
			delete(container, "ports")
		default:
			continue
		}
		if err := encode.Encode(object); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The pod of the Kubernetes manifest, run by podman, traces with the configuration, the rights and
// the read-only root that the manifest gives it.
func TestKubePlay(t *testing.T) {
	needs(t, "podman", "runc", "catatonit", "g++")
	dir := t.TempDir()
	settings := filepath.Join(dir, "containers.conf")
	// Podman 4.3 ignores hostPID, and has no seccomp profile of a pod.
	if err := os.WriteFile(settings, []byte("[containers]\npidns = \"host\"\nseccomp_profile = \"unconfined\"\n"+
		"default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINERS_CONF", settings)
	podman := image(t, dir)
	listen, health := unused(t), unused(t)
	pod := podOf(t, listen, health)
	if out, err := podman("kube", "play", pod).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	defer func() {
		if t.Failed() {
			out, _ := podman("logs", "tt-memtrace-tt-memtrace").CombinedOutput()
			t.Logf("%s", out)
		}
		if out, err := podman("kube", "down", pod).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}()
	var is []struct{ EffectiveCaps []string }
	out, err := podman("inspect", "tt-memtrace-tt-memtrace").Output()
	if err == nil {
		err = json.Unmarshal(out, &is)
	}
	if err != nil || len(is) != 1 || !slices.Equal(lower(is[0].EffectiveCaps), capabilities()) {
		t.Errorf("%v: it has %+v, not %v", err, is, capabilities())
	}

	library, err := (fixture.Build{}).Library(dir)
	if err != nil {
		t.Fatal(err)
	}
	driver, err := fixture.Driver(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fixture.Start(driver)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	get := func(address, path string) string {
		r, err := http.Get("http://" + address + path)
		if err != nil {
			return ""
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			return ""
		}
		return string(b)
	}
	eventually(t, "it is ready", func() bool { return get(health, "/readyz") != "" && get(health, "/healthz") != "" })
	has := func(metric string, value int) func() bool {
		line := fmt.Sprintf("\n%s{comm=\"driver\",container=\"\",pid=\"%d\",pod=\"\"} %d\n", metric, p.PID, value)
		return func() bool {
			defer time.Sleep(200 * time.Millisecond) // it answers five a second
			return strings.Contains(get(listen, "/metrics"), line)
		}
	}
	for _, do := range []string{"open " + library, "device 0 3"} {
		if _, err := p.Do("%s", do); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the process is found", has("tt_memtrace_process_buffers", 0))
	if _, err := p.Do("alloc 100 0 0 0 4096 1024 64"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its allocation is seen", has("tt_memtrace_process_allocations_total", 1))
}

// The image, run as its definition says, traces.
func TestContainer(t *testing.T) {
	needs(t, "podman", "runc", "g++")
	dir := t.TempDir()
	podman := image(t, dir)
	_, says, _ := strings.Cut(strings.NewReplacer("# ", "", "\\\n", "").Replace(read(t, definition)), "docker run ")
	says, _, found := strings.Cut(says, "-p ")
	if !found {
		t.Fatal("the definition does not say how to run the image")
	}
	address := unused(t)
	args := append([]string{"run", "--name", "traces", "--network=host", "--security-opt", "seccomp=unconfined",
		// Podman would raise them, for which not every root has the right.
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}, strings.Fields(says)...)
	container := podman(append(args, "tt-memtrace", "exporter", "--listen", address)...)
	var log bytes.Buffer
	container.Stdout, container.Stderr = &log, &log
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- container.Wait() }()
	defer func() {
		podman("kill", "--signal", "TERM", "traces").Run()
		if err := <-ended; err != nil {
			t.Errorf("%v: %s", err, log.String())
		}
	}()

	library, err := (fixture.Build{}).Library(dir)
	if err != nil {
		t.Fatal(err)
	}
	driver, err := fixture.Driver(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fixture.Start(driver)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	has := func(metric string, value int) func() bool {
		line := fmt.Sprintf("\n%s{comm=\"driver\",container=\"\",pid=\"%d\",pod=\"\"} %d\n", metric, p.PID, value)
		return func() bool {
			select {
			case err := <-ended:
				ended <- err
				t.Fatal("the container has ended")
			default:
			}
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err != nil {
				return false
			}
			text, _ := request(conn)
			time.Sleep(200 * time.Millisecond) // it answers five a second
			return strings.Contains(text, line)
		}
	}
	for _, do := range []string{"open " + library, "device 0 3"} {
		if _, err := p.Do("%s", do); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the process is found", has("tt_memtrace_process_buffers", 0))
	if _, err := p.Do("alloc 100 0 0 0 4096 1024 64"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its allocation is seen", has("tt_memtrace_process_allocations_total", 1))
}

// The service's own command, with exactly its capabilities and no user's rights,
// traces the real runtime of another user, and its numbers are right.
func TestCapabilitiesSuffice(t *testing.T) {
	needs(t, "setpriv")
	dir := packages(t, "1.0.0")
	at, err := os.MkdirTemp("", "tt-memtrace-package-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(at)
	if err := os.Chmod(at, 0o755); err != nil { // for every user
		t.Fatal(err)
	}
	command(t, "dpkg-deb", "-x", deb(dir, "1.0.0"), at)
	r, err := rig.Install(t.Context(), rig.DefaultRelease)
	if errors.Is(err, rig.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, c := range capabilities() {
		list = append(list, "+"+strings.TrimPrefix(c, "cap_"))
	}
	caps := strings.Join(list, ",")
	args := []string{"--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
		"--bounding-set=-all," + caps, "--inh-caps=-all," + caps, "--ambient-caps=-all," + caps}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	args = append(args, strings.Fields(strings.Replace(setting(t, "ExecStart"), "/usr", at+"/usr", 1))...)
	cmd := exec.Command("setpriv", append(args, "--listen", address)...)
	cmd.Dir, cmd.Env = "/", []string{}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, log.String())
		}
	}()
	scrape := func() string {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return ""
		}
		text, _ := request(conn)
		time.Sleep(200 * time.Millisecond)
		return text
	}
	eventually(t, "it answers", func() bool { return strings.Contains(scrape(), "tt_memtrace_events_total") })
	w, err := r.Start(t.Context(), rig.Options{Cluster: "t3k", Script: rig.Workload, Args: []string{"--steps", "40"}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var wrong string
	defer func() {
		if t.Failed() {
			t.Log(wrong)
		}
	}()
	for {
		rest, err := w.Rest(patience)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "its numbers are the runtime's own", func() bool {
			text := scrape()
			wrong = ""
			for _, chip := range rest.Devices[0].Chips {
				for memory, bytes := range rest.Reserved(chip) {
					line := fmt.Sprintf(`tt_memtrace_memory_reserved_bytes{chip="%d",memory="%s",private_to=""} `, chip, strings.ToLower(memory))
					_, value, _ := strings.Cut(text, line)
					value, _, _ = strings.Cut(value, "\n")
					if v, err := strconv.ParseFloat(value, 64); err != nil || v != float64(bytes) {
						wrong += fmt.Sprintf("%s is %q, not %d; ", line, value, bytes)
					}
				}
			}
			return wrong == ""
		})
		if rest.Last {
			break
		}
		if err := w.Send("go"); err != nil {
			t.Fatal(err)
		}
	}
}
