package cgroup

import (
	"strings"
	"testing"
)

const (
	hexID  = "4f1d2c3b5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff001"
	short  = "4f1d2c3b5a69"
	podID  = "1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901"
	podOld = "6dae1a0b0c2d4e5f8091a2b3c4d5e6f7"
)

func TestParse(t *testing.T) {
	pod := strings.ReplaceAll(podID, "-", "_")
	for _, c := range []struct{ name, cgroup, want string }{
		{"no container", "0::/user.slice/user-1000.slice/session-3.scope", ""},
		{"the root", "0::/", ""},
		{"nothing", "", ""},
		{"a desktop's program", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-code-4711.scope", ""},
		{"docker", "0::/docker/" + hexID, "docker:" + short},
		{"docker by systemd", "0::/system.slice/docker-" + hexID + ".scope", "docker:" + short},
		{"docker's own service", "0::/system.slice/docker.service", ""},
		{"docker, version 1", "12:pids:/docker/" + hexID + "\n11:memory:/docker/" + hexID + "\n0::/system.slice/containerd.service", "docker:" + short},
		{"seen from another cgroup namespace", "0::/../../docker-" + hexID + ".scope", "docker:" + short},
		{"a cgroup made inside", "0::/system.slice/docker-" + hexID + ".scope/init", "docker:" + short},
		{"podman", "0::/machine.slice/libpod-" + hexID + ".scope", "podman:" + short},
		{"podman of a user", "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + hexID + ".scope/container", "user-1000:podman/" + short},
		{"podman by cgroupfs", "0::/libpod_parent/libpod-" + hexID, "podman:" + short},
		{"podman's monitor", "0::/machine.slice/libpod-conmon-" + hexID + ".scope", ""},
		{"containerd", "0::/system.slice/nerdctl-" + hexID + ".scope", "containerd:" + short},
		{"containerd by cgroupfs", "0::/default/" + hexID, "container:" + short},
		{"kubernetes by cgroupfs", "0::/kubepods/burstable/pod" + podID + "/" + hexID, "kubernetes:" + podID + "/" + short},
		{"kubernetes by systemd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + pod + ".slice/cri-containerd-" + hexID + ".scope",
			"kubernetes:" + podID + "/" + short},
		{"kubernetes, guaranteed", "0::/kubepods.slice/kubepods-pod" + pod + ".slice/cri-containerd-" + hexID + ".scope", "kubernetes:" + podID + "/" + short},
		{"CRI-O", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + pod + ".slice/crio-" + hexID + ".scope",
			"kubernetes:" + podID + "/" + short},
		{"CRI-O without a pod", "0::/system.slice/crio-" + hexID + ".scope", "crio:" + short},
		{"CRI-O's monitor", "0::/kubepods.slice/kubepods-pod" + pod + ".slice/crio-conmon-" + hexID + ".scope", "kubernetes:" + podID},
		{"kubernetes with docker", "0::/kubepods.slice/kubepods-pod" + pod + ".slice/docker-" + hexID + ".scope", "kubernetes:" + podID + "/" + short},
		{"the kubelet's and containerd's drivers differ", "0::/system.slice/containerd.service/kubepods-burstable-pod" + pod + ".slice:cri-containerd:" + hexID,
			"kubernetes:" + podID + "/" + short},
		{"a static pod", "0::/kubepods/burstable/pod" + podOld + "/" + hexID, "kubernetes:" + podOld + "/" + short},
		{"a cluster in docker", "0::/docker/" + strings.Repeat("a", 64) + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + pod + ".slice/cri-containerd-" + hexID + ".scope",
			"kubernetes:" + podID + "/" + short},
		{"LXC", "0::/lxc/web-1/init.scope", "lxc:web-1"},
		{"LXC's payload", "0::/lxc.payload.web-1/system.slice/x.service", "lxc:web-1"},
		{"nspawn", "0::/machine.slice/systemd-nspawn@build.service/payload", "nspawn:build"},
		{"root's own service manager", "0::/user.slice/user-0.slice/user@0.service/app.slice/docker-" + hexID + ".scope", "docker:" + short},
		{"a user who says docker", "0::/user.slice/user-1000.slice/user@1000.service/docker-" + hexID + ".scope", "user-1000:docker/" + short},
		{"a user who says kubernetes", "0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + podID + "/" + hexID, "user-1000:kubernetes/" + podID + "/" + short},
		{"a user who says LXC", "0::/user.slice/user-1000.slice/session-3.scope/lxc.payload.web-1", "user-1000:lxc/web-1"},
		{"a user, seen from another cgroup namespace", "0::/../user-1000.slice/user@1000.service/docker-" + hexID + ".scope", "user-1000:docker/" + short},
		{"a user's manager, seen from inside the slice", "0::/../user@1000.service/docker-" + hexID + ".scope", "user-1000:docker/" + short},
		{"a user inside of a container", "0::/docker/" + hexID + "/user.slice/user-1000.slice/user@1000.service/docker-" + strings.Repeat("b", 64) + ".scope", "docker:" + short},
		{"a user's word beside the kernel's", "1:name=systemd:/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + podID + "/" + hexID + "\n2:memory:/docker/" + hexID, "docker:" + short},
		{"the kernel's beside a user's word", "2:memory:/docker/" + hexID + "\n1:name=systemd:/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + podID + "/" + hexID, "docker:" + short},
		{"docker in docker", "0::/docker/" + strings.Repeat("a", 64) + "/docker/" + hexID, "docker:" + short},
		{"nspawn from the command line", "0::/machine.slice/machine-build.scope/payload", "machine:build"},
		{"garden", "0::/garden/web-1", "garden:web-1"},
		{"docker in LXC", "0::/lxc.payload.web-1/docker/" + hexID, "docker:" + short},
		{"an ID too short", "0::/docker/" + hexID[:63], ""},
		{"an ID too long", "0::/docker/" + hexID + "0", ""},
		{"no lines of cgroups", "docker/" + hexID + "\n::\n\x00", ""},
		{"a name that attacks a terminal", "0::/lxc.payload.\x1b[2J/x", ""},
		{"a long name", "0::/lxc/" + strings.Repeat("x", 65), ""},
	} {
		if got := Parse(c.cgroup).String(); got != c.want {
			t.Errorf("%s: %q, not %q", c.name, got, c.want)
		}
	}
}

// Parts without an ID of digits are no container.
func TestIDsAndPods(t *testing.T) {
	const id, uid = hexID, podID
	for _, test := range []struct{ cgroup, container, pod string }{
		{"0::/user.slice/user-0.slice/session-1.scope\n", "", ""},
		{"0::/system.slice/docker-" + id + ".scope\n", short, ""},
		{"12:memory:/docker/" + id + "\n0::/\n", short, ""},
		{"0::/machine.slice/libpod-" + id + ".scope/container\n", short, ""},
		{"0::/../../kubepods/burstable/pod" + uid + "/" + id + "\n", short, uid},
		{"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/crio-" + id + ".scope\n", short, uid},
		{"0::/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd:" + id + "\n", "", uid},
		{"0::/x/" + id + "0\n", "", ""},
		{"0::/podnot-a-uid/x\n", "", ""},
		{"0::/lxc/0123456789ab/x\n", "", ""},
		{"no colons", "", ""},
		{"", "", ""},
	} {
		if c := Parse(test.cgroup); test.container != "" && c.ID != test.container || c.Pod != test.pod {
			t.Errorf("%q: %+v", test.cgroup, c)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0::/docker/" + hexID)
	f.Add("0::/kubepods/burstable/pod" + podID + "/" + hexID)
	f.Add("0::/lxc/a:b/nspawn")
	f.Add("0::/user.slice/user-1000.slice/user@1000.service/docker-" + hexID + ".scope")
	f.Fuzz(func(t *testing.T, cgroup string) {
		c := Parse(cgroup)
		got := c.String()
		if len(got) > 90 || strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q", got)
		}
		if len(c.ID) != 0 && len(c.ID) != 12 || len(c.Pod) != 0 && len(c.Pod) != 32 && len(c.Pod) != 36 {
			t.Errorf("%+v", c)
		}
	})
}

// A user's own groups make no tenants beside that user.
func TestTenant(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/": "",
		"0::/system.slice/docker-" + hexID + ".scope":                                                                         "docker:" + short,
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + hexID + ".scope/container":                    "user 1000",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker-" + strings.Replace(hexID, "4", "5", 1) + ".scope": "user 1000",
	} {
		if got := Parse(cgroup).Tenant(); got != want {
			t.Errorf("the tenant of %s is %q, not %q", cgroup, got, want)
		}
	}
}
