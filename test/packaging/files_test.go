// Package packaging checks what is installed: the files here, and with the tag
// packages the packages themselves in a clean Debian (make packages-test).
package packaging

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"tt-memtrace/test/program"
	"tt-memtrace/tracer"
)

const (
	root     = "../../"
	unitFile = root + "packaging/systemd/tt-memtrace.service"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// capabilities are those that tracing takes, sorted: cap_bpf and so on.
func capabilities() []string {
	var list []string
	for _, r := range tracer.Rights() {
		list = append(list, r.Capability)
	}
	slices.Sort(list)
	return list
}

// lower sorts names of capabilities, whatever their case, with or without CAP_.
func lower(names []string) []string {
	var list []string
	for _, n := range names {
		list = append(list, "cap_"+strings.TrimPrefix(strings.ToLower(n), "cap_"))
	}
	slices.Sort(list)
	return list
}

// setting is what the unit says, once.
func setting(t *testing.T, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(read(t, unitFile), -1)
	if len(m) != 1 {
		t.Fatalf("the unit has %s %d times", name, len(m))
	}
	return m[0][1]
}

// The service, the DaemonSet and the container get what tracing takes, and no more.
func TestRightsAreThoseOfTracing(t *testing.T) {
	want := capabilities()
	for _, name := range []string{"AmbientCapabilities", "CapabilityBoundingSet"} {
		if got := lower(strings.Fields(setting(t, name))); !slices.Equal(got, want) {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}
	var added []string
	for _, m := range regexp.MustCompile(`--cap-add=(\w+)`).FindAllStringSubmatch(read(t, root+"packaging/container/Dockerfile"), -1) {
		added = append(added, m[1])
	}
	if got := lower(added); !slices.Equal(got, want) {
		t.Errorf("the container gets %v, not %v", got, want)
	}
	c := daemonSet(t).Spec.Template.Spec.Containers[0].SecurityContext
	if got := lower(c.Capabilities.Add); !slices.Equal(got, want) || !slices.Equal(c.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("the DaemonSet gets %v, not %v", got, want)
	}
	// Each is explained where it is listed, in the same words as by the program.
	for _, r := range tracer.Rights() {
		for _, f := range []string{unitFile, root + "packaging/kubernetes/tt-memtrace.yaml"} {
			if says := strings.Split(r.For, ", such as")[0]; !strings.Contains(read(t, f), says) {
				t.Errorf("%s does not say that %s is for %s", f, r.Capability, says)
			}
		}
	}
}

type daemon struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				HostPID                      bool `yaml:"hostPID"`
				HostNetwork, HostIPC         bool
				AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
				Volumes                      []map[string]any
				Containers                   []struct {
					Args            []string
					SecurityContext struct {
						Privileged               bool
						AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
						ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
						Capabilities             struct{ Add, Drop []string }
					} `yaml:"securityContext"`
				}
			}
		}
	}
}

func daemonSet(t *testing.T) daemon {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(read(t, root+"packaging/kubernetes/tt-memtrace.yaml")))
	for {
		var one daemon
		if err := d.Decode(&one); err != nil {
			t.Fatalf("no DaemonSet: %v", err)
		}
		if one.Kind == "DaemonSet" {
			return one
		}
	}
}

func TestDaemonSetHasTheLeastRights(t *testing.T) {
	s := daemonSet(t).Spec.Template.Spec
	c := s.Containers[0].SecurityContext
	if !s.HostPID || s.HostNetwork || s.HostIPC || s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken ||
		c.Privileged || c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation || !c.ReadOnlyRootFilesystem {
		t.Errorf("%+v", s)
	}
	for _, v := range s.Volumes {
		if v["hostPath"] != nil {
			t.Errorf("a folder of the host is mounted: %v", v)
		}
	}
}

// The kubelet's probes are at an address that has neither TLS nor users, and the port
// that Prometheus scrapes is the one that the PodMonitor names.
func TestProbesAndPorts(t *testing.T) {
	manifest := read(t, root+"packaging/kubernetes/tt-memtrace.yaml")
	for _, want := range []string{
		"httpGet: {path: /readyz, port: health}", "httpGet: {path: /healthz, port: health}",
		"- name: health\n              containerPort: 9948", `health-listen: ":9948"`, "- name: metrics\n              containerPort: 9947", `listen: ":9947"`,
	} {
		if !strings.Contains(manifest, want) {
			t.Errorf("the DaemonSet has no %q", want)
		}
	}
	var monitor struct {
		Kind string
		Spec struct {
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			PodMetricsEndpoints []struct {
				Port        string
				HonorLabels bool `yaml:"honorLabels"`
			} `yaml:"podMetricsEndpoints"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, root+"packaging/kubernetes/podmonitor.yaml")), &monitor); err != nil {
		t.Fatal(err)
	}
	e := monitor.Spec.PodMetricsEndpoints
	if monitor.Kind != "PodMonitor" || len(e) != 1 || e[0].Port != "metrics" || !e[0].HonorLabels ||
		monitor.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != "tt-memtrace" {
		t.Errorf("%+v", monitor)
	}
}

// The configurations that are shipped are ones, with all that they suggest.
func TestConfigurations(t *testing.T) {
	tool, err := program.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	shipped := read(t, root+"packaging/config.yaml")
	suggested := regexp.MustCompile(`(?m)^# ?((?:  )?[a-z-]+:(?: .*)?)$`).ReplaceAllString(shipped, "$1")
	suggested = strings.ReplaceAll(suggested, "/etc/tt-memtrace/web.yaml", `""`)
	if strings.Count(suggested, "\n#") > 5 {
		t.Errorf("not all is tried:\n%s", suggested)
	}
	var config struct{ Data map[string]string }
	d := yaml.NewDecoder(strings.NewReader(read(t, root+"packaging/kubernetes/tt-memtrace.yaml")))
	for len(config.Data) == 0 {
		if err := d.Decode(&config); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"as shipped": shipped, "as suggested": suggested, "of the DaemonSet": config.Data["config.yaml"]} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(tool, "config", "--config", file)
		cmd.Env = []string{}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s\n%s", name, err, out, text)
		}
		if set := strings.Count(string(out), "# "+file); name == "as suggested" && set < 9 {
			t.Errorf("%s: only %d values are set:\n%s", name, set, out)
		}
	}
}

func analyze(t *testing.T, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed (on Debian and Ubuntu: systemd)")
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// systemd understands every line of the unit, and thinks of it what the documentation says.
func TestUnit(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tt-memtrace.service")
	program := filepath.Join(dir, "tt-memtrace")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(read(t, unitFile), "/usr/bin/tt-memtrace", program)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if said := analyze(t, "verify", "--man=no", file); strings.TrimSpace(said) != "" {
		t.Errorf("systemd-analyze verify: %s", said)
	}
	said := analyze(t, "security", "--offline=true", "--no-pager", unitFile)
	m := regexp.MustCompile(`Overall exposure level for tt-memtrace.service: ([0-9.]+) (\w+)`).FindStringSubmatch(said)
	if m == nil {
		t.Fatal(said)
	}
	if want := fmt.Sprintf("gives it %s (%s)", m[1], m[2]); !strings.Contains(read(t, root+"docs/exporter.md"), want) {
		t.Errorf("docs/exporter.md does not say that systemd-analyze security %s", want)
	}
}

// All that the packages are made of is there, and the scripts are ones.
func TestPackageContents(t *testing.T) {
	var n struct {
		Contents []struct{ Src, Dst string }
		Scripts  map[string]string
	}
	if err := yaml.Unmarshal([]byte(read(t, root+"packaging/nfpm.yaml")), &n); err != nil {
		t.Fatal(err)
	}
	// What the program and the README refer to is shipped.
	text := read(t, root+"packaging/nfpm.yaml")
	for _, m := range regexp.MustCompile(`docs/\w+\.md`).FindAllString(read(t, root+"README.md"), -1) {
		if !strings.Contains(text, "{src: "+m+",") {
			t.Errorf("%s is not in the packages", m)
		}
	}
	for _, c := range n.Contents {
		if c.Src != "" && !strings.HasPrefix(c.Src, "${DIST}") {
			if found, err := filepath.Glob(root + c.Src); len(found) == 0 || err != nil {
				t.Errorf("there is no %s (%v)", c.Src, err)
			}
		}
	}
	scripts := []string{"packaging/build.sh", "packaging/version.sh", "packaging/reproducible.sh"}
	for _, s := range n.Scripts {
		scripts = append(scripts, s)
	}
	for _, s := range scripts {
		if out, err := exec.Command("sh", "-n", root+s).CombinedOutput(); err != nil || bytes.TrimSpace(out) != nil {
			t.Errorf("%s: %v %s", s, err, out)
		}
	}
}

// A version sorts after those of earlier commits, and before the release that it leads to.
func TestVersions(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for name, text := range map[string]string{
		"packaging/version.sh": read(t, root+"packaging/version.sh"),
		"CHANGELOG.md":         "# Changelog\n\n## 1.2.3, not released yet\n\n## 1.2.2, 2026-01-01\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run("git", "init", "-q")
	var versions []string
	for _, step := range []struct{ want, tag string }{{want: `1\.2\.3~\d{14}\.g[0-9a-f]{12}`}, {`1\.2\.3`, "v1.2.3"}, {want: `1\.2\.3\+1\.g[0-9a-f]{12}`}} {
		if step.tag == "" {
			run("git", "add", "-A")
			run("git", "commit", "-q", "--allow-empty", "-m", "a")
		} else {
			run("git", "tag", step.tag)
		}
		got := run("packaging/version.sh")
		if !regexp.MustCompile("^" + step.want + "$").MatchString(got) {
			t.Errorf("%s is not %s", got, step.want)
		}
		versions = append(versions, got)
	}
	if _, err := exec.LookPath("dpkg"); err == nil {
		for i, later := range versions[1:] {
			run("dpkg", "--compare-versions", versions[i], "lt", later)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := run("packaging/version.sh"); got != versions[2]+".dirty" {
		t.Error(got)
	}
}

// Every module that is linked into the program has its licence in the packages.
func TestLicencesOfModules(t *testing.T) {
	tool, err := program.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(tool)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(root + "packaging/licenses.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) < 20 {
		t.Errorf("it is linked with %d modules", len(info.Deps))
	}
	for _, m := range append(info.Deps, &debug.Module{Path: info.GoVersion}) {
		_, text, found := strings.Cut(string(out), "\n==== "+strings.TrimSpace(m.Path+" "+m.Version)+": ")
		if text, _, _ = strings.Cut(text, "\n==== "); !found || len(text) < 500 {
			t.Errorf("%s %s has %d bytes of licence", m.Path, m.Version, len(text))
		}
	}
}
