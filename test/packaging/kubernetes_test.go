package packaging

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	kyaml "sigs.k8s.io/yaml"
)

// manifests decodes objects by the types of Kubernetes 1.27, which refuse fields that they
// do not know, and returns the DaemonSet and what was refused.
func manifests(t *testing.T, text []byte) (daemon apps.DaemonSet, refused []string) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text))
	kinds := map[string]any{"Namespace": &core.Namespace{}, "ConfigMap": &core.ConfigMap{}, "DaemonSet": &daemon, "NetworkPolicy": &networking.NetworkPolicy{}}
	seen := 0
	for ; ; seen++ {
		var one map[string]any
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		into := kinds[one["kind"].(string)]
		if into == nil {
			t.Fatalf("%v is not expected", one["kind"])
		}
		b, err := yaml.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		unknown, err := decode(b, into)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range unknown {
			refused = append(refused, u.Error())
		}
	}
	if seen != len(kinds) {
		t.Errorf("%d objects, not %d", seen, len(kinds))
	}
	return daemon, refused
}

// decode does as the API server does: unknown holds the fields that it does not know.
func decode(text []byte, into any) (unknown []error, err error) {
	b, err := kyaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	return json.UnmarshalStrict(b, into)
}

// overlay builds one of the base with components, as users write it.
func overlay(t *testing.T, components ...string) []byte {
	t.Helper()
	base, err := filepath.Abs(root + "packaging/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	relative, err := filepath.Rel(dir, base)
	if err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + relative + "]\ncomponents: ["
	for _, c := range components {
		text += filepath.Join(relative, c) + ","
	}
	text += "]\nimages: [{name: tt-memtrace, newName: registry.example/tt-memtrace, newTag: 1.2.3}]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Kubernetes 1.27 knows every field but one, which a component replaces.
func TestManifestsAreKubernetes(t *testing.T) {
	const newer = "appArmorProfile"
	_, refused := manifests(t, []byte(read(t, root+"packaging/kubernetes/tt-memtrace.yaml")))
	if len(refused) != 1 || strings.Count(refused[0], "unknown field") != 1 || !strings.Contains(refused[0], newer) {
		t.Errorf("as shipped: %q", refused)
	}
	d, refused := manifests(t, overlay(t, "before-1.30"))
	if len(refused) != 0 || d.Spec.Template.Annotations["container.apparmor.security.beta.kubernetes.io/tt-memtrace"] != "unconfined" {
		t.Errorf("for 1.27: %q, %v", refused, d.Spec.Template.Annotations)
	}
	// What is wrong is refused.
	for _, wrong := range [][2]string{{"hostPID:", "hostPid:"}, {"failureThreshold: 3", "failureThreshold: three"}, {"runAsUser: 0", "runAsUsr: 0"}} {
		text := strings.Replace(read(t, root+"packaging/kubernetes/tt-memtrace.yaml"), wrong[0], wrong[1], 1)
		var d apps.DaemonSet
		for _, document := range strings.Split(text, "\n---\n") {
			if strings.Contains(document, "kind: DaemonSet") {
				document = strings.Replace(document, "            appArmorProfile:\n              type: Unconfined\n", "", 1)
				if unknown, err := decode([]byte(document), &d); len(unknown) == 0 && err == nil {
					t.Errorf("%q is accepted", wrong[1])
				}
			}
		}
	}
}

// Probes are the base's, sampling is a component's, which needs one capability.
func TestComponents(t *testing.T) {
	probes, _ := manifests(t, overlay(t))
	c := probes.Spec.Template.Spec.Containers[0]
	if c.Image != "registry.example/tt-memtrace:1.2.3" || !slices.Equal(c.Args, []string{"exporter"}) || len(c.SecurityContext.Capabilities.Add) != 4 {
		t.Errorf("the base: %s %q %v", c.Image, c.Args, c.SecurityContext.Capabilities)
	}
	const label = "feature.node.kubernetes.io/pci-1200_1e52.present"
	if _, there := probes.Spec.Template.Spec.NodeSelector[label]; there {
		t.Error("the base selects nodes by their features")
	}
	all, refused := manifests(t, overlay(t, "sampling", "nfd", "before-1.30"))
	spec := all.Spec.Template.Spec
	c = spec.Containers[0]
	if len(refused) != 0 || !slices.Equal(c.Args, []string{"exporter", "--sample"}) || !slices.Equal(c.SecurityContext.Capabilities.Add, []core.Capability{"SYS_PTRACE"}) ||
		!slices.Equal(c.SecurityContext.Capabilities.Drop, []core.Capability{"ALL"}) || !spec.HostPID || *c.SecurityContext.Privileged {
		t.Errorf("sampling: %q %q %+v", refused, c.Args, c.SecurityContext)
	}
	if spec.NodeSelector[label] != "true" || spec.NodeSelector["kubernetes.io/arch"] != "amd64" {
		t.Errorf("it selects %v", spec.NodeSelector)
	}
}
