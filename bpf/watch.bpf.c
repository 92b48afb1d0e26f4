//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tells which processes map files that may hold the runtime. It is apart from the
 * probes because a kernel may not let programs into its functions.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The few fields of the kernel's own structs that are read, relocated by BTF. */
struct qstr {
	const unsigned char *name;
} __attribute__((preserve_access_index));

struct dentry {
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

/* PIDs of processes, each a __u32. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 10);
} mapped SEC(".maps");

/* How many found the ring full. */
__u64 lost = 0;

/* What the names of such files begin with, set by user space. */
#define NAMES 2
#define NAME 16
volatile const char names[NAMES][NAME] = {};
/* Files of all names are told of. */
volatile const __u8 any_name = 0;

static __always_inline int begins(const char *name, const volatile char *with)
{
	for (int i = 0; i < NAME && with[i]; i++)
		if (name[i] != with[i])
			return 0;
	return 1;
}

/*
 * perf_event_mmap(vma): something was mapped, or made executable. It is where perf
 * learns of libraries too, but nobody is woken here for those that are of no interest.
 */
SEC("fentry/perf_event_mmap")
int BPF_PROG(file_mapped, struct vm_area_struct *vma)
{
	char name[NAME] = {};
	__u32 *pid;

	if (!(vma->vm_flags & VM_EXEC) || !vma->vm_file)
		return 0;
	if (!any_name) {
		bpf_probe_read_kernel_str(name, sizeof(name), vma->vm_file->f_path.dentry->d_name.name);
		if (!begins(name, names[0]) && !begins(name, names[1]))
			return 0;
	}
	pid = bpf_ringbuf_reserve(&mapped, sizeof(*pid), 0);
	if (!pid) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	*pid = bpf_get_current_pid_tgid() >> 32;
	bpf_ringbuf_submit(pid, 0);
	return 0;
}
