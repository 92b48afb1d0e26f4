//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Reports the PIDs of processes that map a device, or a file that may be the runtime. It is loaded apart from
 * the probes, because some kernels do not allow fentry programs; perf events then replace it.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The fields of the kernel's structs that are read here. BTF relocates them. */
struct qstr {
	const unsigned char *name;
} __attribute__((preserve_access_index));

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
} __attribute__((preserve_access_index));

struct path {
	struct dentry *dentry;
} __attribute__((preserve_access_index));

struct file {
	struct path f_path;
} __attribute__((preserve_access_index));

struct vm_area_struct {
	unsigned long vm_flags;
	struct file *vm_file;
} __attribute__((preserve_access_index));

#define VM_EXEC 4
#define VM_SHARED 8

/* A process that mapped something. */
struct mapping {
	__u64 at; /* CLOCK_MONOTONIC, ns */
	__u64 pid;
};

/* Each record is a struct mapping. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 10);
} mapped SEC(".maps");

/* Mappings that found the ring full. */
__u64 lost = 0;

/* The beginnings of the names of such files. User space sets them. */
#define NAMES 2
#define NAME 16
volatile const char names[NAMES][NAME] = {};
/* 1: report executable files of all names. */
volatile const __u8 any_name = 0;

/*
 * The name of the folder of device nodes, and the beginning of the names of the runtime's accounts in shared
 * memory. User space sets them.
 */
volatile const char device_folder[NAME] = {};
volatile const char shared_prefix[NAME] = {};

/*
 * When a process was last reported for a device, ns. It maps a device many times, so report it once in
 * DEVICE_AGAIN.
 */
#define DEVICE_AGAIN 1000000000ULL
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} holders SEC(".maps");

static __always_inline int begins(const char *name, const volatile char *with)
{
	for (int i = 0; i < NAME && with[i]; i++)
		if (name[i] != with[i])
			return 0;
	return 1;
}

static __always_inline void tell(__u32 tgid)
{
	struct mapping *m = bpf_ringbuf_reserve(&mapped, sizeof(*m), 0);

	if (!m) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	m->at = bpf_ktime_get_ns();
	m->pid = tgid;
	bpf_ringbuf_submit(m, 0);
}

/*
 * Reports whether a shared mapping is of a device, or of the runtime's account of one, which mock devices
 * have, too.
 */
static __always_inline int of_device(struct dentry *dentry)
{
	char name[NAME] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), dentry->d_name.name);
	if (begins(name, shared_prefix))
		return 1;
	bpf_probe_read_kernel_str(name, sizeof(name), dentry->d_parent->d_name.name);
	return begins(name, device_folder);
}

/*
 * perf_event_mmap(vma): the process has mapped something, or made it executable. perf's own mmap events come
 * from here, too; unlike those, this reports only files that matter.
 */
SEC("fentry/perf_event_mmap")
int BPF_PROG(file_mapped, struct vm_area_struct *vma)
{
	char name[NAME] = {};
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	__u64 now, *told;

	if (!vma->vm_file)
		return 0;
	if (!(vma->vm_flags & VM_EXEC)) {
		if (!(vma->vm_flags & VM_SHARED) || !of_device(vma->vm_file->f_path.dentry))
			return 0;
		now = bpf_ktime_get_ns();
		told = bpf_map_lookup_elem(&holders, &tgid);
		if (told && now - *told < DEVICE_AGAIN)
			return 0;
		bpf_map_update_elem(&holders, &tgid, &now, BPF_ANY);
		tell(tgid);
		return 0;
	}
	if (!any_name) {
		bpf_probe_read_kernel_str(name, sizeof(name), vma->vm_file->f_path.dentry->d_name.name);
		if (!begins(name, names[0]) && !begins(name, names[1]))
			return 0;
	}
	tell(tgid);
	return 0;
}
