//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The probes. Each is at a function's entry, reads the arguments and objects that it needs, and sends records
 * through the BPF ring buffer. None is at a return, and none writes into the traced process. The comment of a
 * probe names the function.
 */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include "events.h"

/* libbpf defines BPF_UPROBE since 1.2. It equals BPF_KPROBE. */
#ifndef BPF_UPROBE
#define BPF_UPROBE BPF_KPROBE
#endif

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The fields of the kernel's structs that are read here. BTF relocates them. */
typedef struct {
	int counter;
} tt_atomic_t;

struct signal_struct {
	tt_atomic_t live;
	int group_exit_code;
	unsigned int flags;
} __attribute__((preserve_access_index));

struct task_struct {
	unsigned int flags;
	int pid;
	int tgid;
	int exit_code;
	__u64 start_boottime;
	struct task_struct *group_leader;
	struct signal_struct *signal;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20); /* bytes; user space sets another size */
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tt_counters);
} counters SEC(".maps");

/* The layout of each traced build of the runtime, by the index that library_of returns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TT_LIBRARIES);
	__type(key, __u32);
	__type(value, struct tt_layout);
} layouts SEC(".maps");

/* Processes whose exec and exit are reported. With `follow`, their children are watched, too. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TT_PID_PAGES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct tt_pids);
} watched SEC(".maps");

/* A thread's state between probes, until the thread ends. */
#define TT_RECENT 4
struct tt_task {
	/* Bytes that the allocation under way took from each bank; 0 once its record is sent. */
	__u64 reserved;
	/* Its address, if the Buffer does not have it yet; TT_UNKNOWN_ADDRESS if that could not be read. */
	__u64 address;
	/* The last devices on which the thread allocated. An allocation on another one wakes the reader. */
	__u64 recent[TT_RECENT];
	__u32 next;
	/* The number of the program layout under way, its program, and the device. */
	__u32 call;
	__u64 program;
	__u64 device;
	/* The CoreRangeSet of the dataflow buffer that is placed next. */
	__u64 cores;
	/* The Buffer that the thread allocated last. */
	__u64 buffer;
	/* The Kernel whose binaries the thread reads, and the device that they are for. */
	__u64 kernel;
	__u64 kernel_device;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tt_task);
} tasks SEC(".maps");

/* The BPF program of each point, by the point's number, which is in its cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TT_POINTS);
	__type(key, __u32);
	__type(value, __u32);
} points SEC(".maps");

/* Launches of live objects. User space reads them, and deletes those of a process that has ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tt_launch_key);
	__type(value, struct tt_launch);
} launches SEC(".maps");

/*
 * The devices that forked processes opened themselves. The memory of such a process also has copies of its
 * parent's devices, and the record of an opening can be lost; this map tells them apart.
 *
 * An entry for device 0 means that all devices that the process opens are added. User space adds one for a
 * traced process; its children get one when they are forked. The value is when the process started, because
 * PIDs are reused; 0 for a process whose start was not seen.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tt_own_key);
	__type(value, __u64);
} own_devices SEC(".maps");

/* 1: trace only watched processes. */
volatile const __u8 filter = 0;
/* 1: watch the children of watched processes, too. */
volatile const __u8 follow = 0;
/* The reader drains the ring on a timer. If the ring has this many bytes, a record wakes the reader. */
volatile const __u64 wakeup_bytes = 8 << 20;
/* The reader sets it to 1 while it sleeps without a timer. Then the next record wakes the reader. */
__u32 idle = 0;

/* bpf2go generates Go types for types in the object's BTF. These declarations put them there. */
const struct tt_pids *unused_pids __attribute__((unused));
const struct tt_alloc *unused_alloc __attribute__((unused));
const struct tt_sharded *unused_sharded __attribute__((unused));
const struct tt_per_core *unused_per_core __attribute__((unused));
const enum tt_cb_kind *unused_cb_kind __attribute__((unused));
const struct tt_cb *unused_cb __attribute__((unused));
const struct tt_range *unused_range __attribute__((unused));
const struct tt_object *unused_object __attribute__((unused));
const struct tt_gone *unused_gone __attribute__((unused));
const struct tt_pair *unused_pair __attribute__((unused));
const struct tt_program_added *unused_program_added __attribute__((unused));
const struct tt_text *unused_text __attribute__((unused));
const struct tt_copy *unused_copy __attribute__((unused));
const struct tt_trace *unused_trace __attribute__((unused));
const struct tt_mark *unused_mark __attribute__((unused));
const enum tt_mark_step *unused_mark_step __attribute__((unused));
const enum tt_trace_step *unused_trace_step __attribute__((unused));
const enum tt_often *unused_often __attribute__((unused));
const enum tt_argument *unused_argument __attribute__((unused));
const enum tt_kind *unused_kind __attribute__((unused));

/*
 * A probe's cookie has the index of its build of the runtime, for at_point the number of its point and, from
 * bit TT_COOKIE_TYPES on, the types of the arguments of a function that throws.
 */
#define TT_COOKIE_TYPES 16

static __always_inline __u32 library_in(__u64 cookie)
{
	return cookie & (TT_LIBRARIES - 1);
}

static __always_inline __u32 library_of(void *ctx)
{
	return library_in(bpf_get_attach_cookie(ctx));
}

static __always_inline struct tt_counters *counters_of_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counters, &zero);
}

static __always_inline __u8 *watched_at(__u32 pid)
{
	__u32 page = pid / TT_PIDS_IN_PAGE;
	struct tt_pids *pids = bpf_map_lookup_elem(&watched, &page);

	return pids ? &pids->is[pid % TT_PIDS_IN_PAGE] : NULL;
}

static __always_inline int is_watched(__u32 pid)
{
	__u8 *is = watched_at(pid);

	return is && *is;
}

static __always_inline void watch(__u32 pid)
{
	__u8 *is = watched_at(pid);

	if (is)
		*is = 1;
}

/* Reports whether a process is not traced. */
static __always_inline int skipped(__u32 pid)
{
	return filter && !is_watched(pid);
}

/* Adds atomically, because another probe can interrupt one on the same CPU. */
#define COUNT(counter) __sync_fetch_and_add(&(counter), 1)

/*
 * Returns room for a record in the ring, or NULL if the ring is full. Counts the record as seen, or as seen
 * and lost.
 */
static __always_inline void *reserve(struct tt_counters *c, enum tt_kind kind, __u64 size)
{
	void *record = bpf_ringbuf_reserve(&events, size, 0);

	if (c) {
		COUNT(c->seen[kind]);
		if (!record)
			COUNT(c->lost[kind]);
	}
	return record;
}

/*
 * Sends a record from reserve. The reader sets `idle`, then checks that the ring is empty, then sleeps. This
 * reads `idle` after the room was reserved. So either the reader sees the record, or this sees `idle` and
 * wakes the reader.
 */
static __always_inline void submit(void *record, int urgent)
{
	__u64 flags = BPF_RB_NO_WAKEUP;

	if (urgent || *(volatile __u32 *)&idle ||
	    bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wakeup_bytes)
		flags = BPF_RB_FORCE_WAKEUP;
	bpf_ringbuf_submit(record, flags);
}

static __always_inline void fill_at(__u64 time, struct tt_head *head, enum tt_kind kind, __u64 pid_tgid,
				    __u64 library)
{
	head->time = time;
	head->pid = pid_tgid >> 32;
	head->tid = (__u32)pid_tgid;
	head->kind = kind;
	head->memory = 0;
	head->layout = 0;
	head->library = library;
	head->per_bank = 0;
}

static __always_inline void fill(struct tt_head *head, enum tt_kind kind, __u64 pid_tgid, __u64 library)
{
	fill_at(bpf_ktime_get_ns(), head, kind, pid_tgid, library);
}

/* The part of a Buffer that contains the fields to read. */
struct window {
	__u8 bytes[TT_WINDOW];
};

/* Reads a Buffer's fields, and sets base to their address. Returns 0, or an error if they cannot be read. */
static __always_inline int read_window(struct window *w, const struct tt_layout *l, __u64 buffer, __u64 *base)
{
	__u64 span = l->span;

	*base = buffer + l->base;
	if (l->indirect && bpf_probe_read_user(base, sizeof(*base), (void *)*base))
		return -1;
	if (span > sizeof(*w))
		span = sizeof(*w);
	return bpf_probe_read_user(w, span, (void *)*base);
}

/* User space has checked the offsets. The masks show the verifier that they are inside the window. */
static __always_inline __u64 u64_at(const struct window *w, __u32 offset)
{
	return *(const __u64 *)&w->bytes[offset & (TT_WINDOW - 8)];
}

static __always_inline __u32 u32_at(const struct window *w, __u32 offset)
{
	return *(const __u32 *)&w->bytes[offset & (TT_WINDOW - 4)];
}

static __always_inline __u8 u8_at(const struct window *w, __u32 offset)
{
	return w->bytes[offset & (TT_WINDOW - 1)];
}

static __always_inline __u32 clamp32(__u64 v)
{
	return v > TT_U32_MAX ? TT_U32_MAX : v;
}

#include "stack.h"

/*
 * allocator::FreeListOpt::allocate_in_block(block, size, offset): the allocator has found a free block, and
 * takes `size` bytes, which are rounded up, from each bank. After this the allocation can only fail at the L1
 * limit; then the thread's next allocation overwrites `reserved`. This point is probed only if user space
 * does not compute the reserved size.
 */
SEC("uprobe.multi")
int BPF_UPROBE(reserve_in_bank, void *self, __u64 block, __u64 size)
{
	struct tt_task *task;

	if (skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (task)
		task->reserved = size;
	return 0;
}

/*
 * Reports whether a device is none of the last on which the thread allocated. User space must read a new
 * device while it exists.
 */
static __always_inline int is_new(struct tt_task *task, __u64 device)
{
	for (int i = 0; i < TT_RECENT; i++)
		if (task->recent[i] == device)
			return 0;
	task->recent[task->next++ & (TT_RECENT - 1)] = device;
	return 1;
}

static __always_inline int object_event_at(__u64 time, enum tt_kind kind, __u64 object, __u64 library,
					   int urgent)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct tt_object *e;

	if (skipped(pid_tgid >> 32))
		return 0;
	e = reserve(counters_of_cpu(), kind, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, kind, pid_tgid, library);
	e->object = object;
	submit(e, urgent);
	return 0;
}

static __always_inline int object_event(enum tt_kind kind, __u64 object, __u64 library, int urgent)
{
	return object_event_at(bpf_ktime_get_ns(), kind, object, library, urgent);
}

/*
 * Sends which process's record of a kind is missing or incomplete because its memory could not be read: a
 * page can be swapped out, and a probe cannot wait for it. User space handles that like a lost record.
 *
 * The function is not static, so that the verifier checks it once and not once per probe.
 */
__attribute__((noinline)) int missed(__u64 kind, __u64 library)
{
	return object_event(TT_UNREAD, kind, library, 0);
}

/* Counts and sends that a record cannot be made. */
static __always_inline void unread(struct tt_counters *c, enum tt_kind kind, __u64 library)
{
	if (c) {
		COUNT(c->seen[kind]);
		COUNT(c->unread[kind]);
	}
	missed(kind, library);
}

/* Discards a reserved record whose remaining data could not be read, and counts and sends that. */
static __always_inline void dropped(void *record, struct tt_counters *c, enum tt_kind kind, __u64 library)
{
	bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
	if (c)
		COUNT(c->unread[kind]);
	missed(kind, library);
}

#define TT_UNKNOWN_ADDRESS ~0ULL

/* TensorMemoryLayout::INTERLEAVED */
#define TT_INTERLEAVED 0

/*
 * FreeListOpt::allocate_in_block, as reserve_in_bank. It is used if buffer_allocated runs before the Buffer
 * has its address, and computes that: the block's, plus the `offset` in the block, plus where the bank
 * begins.
 */
SEC("uprobe.multi")
int BPF_UPROBE(block_taken, __u64 self, __u64 block, __u64 size, __u64 offset)
{
	__u32 library = library_of(ctx);
	__u64 blocks, address, base;
	struct tt_layout *l;
	struct tt_task *task;

	if (skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	l = bpf_map_lookup_elem(&layouts, &library);
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!l)
		return 0;
	if (!task) { /* no memory for the state: buffer_allocated will skip the Buffer */
		unread(counters_of_cpu(), TT_ALLOC, library);
		return 0;
	}
	task->reserved = size;
	task->address = TT_UNKNOWN_ADDRESS;
	if (bpf_probe_read_user(&blocks, sizeof(blocks), (void *)(self + l->blocks)) ||
	    bpf_probe_read_user(&address, sizeof(address), (void *)(blocks + block * sizeof(address))) ||
	    bpf_probe_read_user(&base, sizeof(base), (void *)(self + l->block_base)))
		return 0;
	task->address = address + offset + base;
	return 0;
}

/* The beginning of a std::vector. A CoreRangeSet begins with a vector of CoreRange. */
struct vector {
	__u64 begin;
	__u64 end;
};

/*
 * Sends a sharded buffer's TT_SHARDED, before its TT_ALLOC. If something cannot be read, its length is 0, and
 * user space does not compute the reserved size. The function is not static, so that the verifier checks it
 * once and not once per path to it.
 */
__attribute__((noinline)) int send_sharded(__u64 time, __u64 base, __u64 library)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid(), span, length;
	__u32 index = library;
	struct tt_layout *l = bpf_map_lookup_elem(&layouts, &index);
	struct tt_sharded *e;
	struct vector v;

	if (!l)
		return 0;
	e = reserve(counters_of_cpu(), TT_SHARDED, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, TT_SHARDED, pid_tgid, library);
	e->length = 0;
	e->ranges_length = 0;
	span = l->sharded;
	if (span > sizeof(e->fields))
		span = sizeof(e->fields);
	if (!bpf_probe_read_user(e->fields, span, (void *)base)) {
		e->length = span;
		if (l->ranges && !bpf_probe_read_user(&v, sizeof(v), (void *)(base + l->ranges))) {
			length = v.end - v.begin;
			if (length <= sizeof(e->ranges) &&
			    !bpf_probe_read_user(e->ranges, length, (void *)v.begin))
				e->ranges_length = length;
		}
	}
	submit(e, 0);
	return 0;
}

/* The part of a std::unordered_map that leads to its elements. */
struct map_head {
	__u64 first;
	__u64 count;
};

/* An element of a std::unordered_map<CoreCoord, DeviceAddr>. */
struct map_node {
	__u64 next;
	__u64 x, y;
	__u64 address;
};

/* libstdc++'s pointer to the first element follows the array of buckets and its size. */
#define TT_MAP_FIRST 16

/*
 * Sends a buffer's TT_PER_CORE, before its TT_ALLOC, if the buffer has an address on each core. The function
 * is not static, so that the verifier checks it once and not once per path to it.
 */
__attribute__((noinline)) int send_per_core(__u64 time, __u64 base, __u64 library)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u32 index = library, count = 0;
	struct tt_layout *l = bpf_map_lookup_elem(&layouts, &index);
	struct tt_counters *c = counters_of_cpu();
	struct map_head head = {};
	struct map_node node = {};
	struct tt_per_core *e;
	__u8 is = 0;

	if (!l)
		return 0;
	if (bpf_probe_read_user(&is, sizeof(is), (void *)(base + l->per_core))) {
		unread(c, TT_PER_CORE, library);
		return 0;
	}
	if (is != 1)
		return 0;
	e = reserve(c, TT_PER_CORE, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, TT_PER_CORE, pid_tgid, library);
	if (bpf_probe_read_user(&head, sizeof(head), (void *)(base + l->cores + TT_MAP_FIRST))) {
		dropped(e, c, TT_PER_CORE, library);
		return 0;
	}
	e->total = head.count;
	node.next = head.first;
	for (int i = 0; i < TT_PER_CORE_CORES; i++) {
		if (!node.next || bpf_probe_read_user(&node, sizeof(node), (void *)node.next))
			break;
		e->cores[i].x = node.x;
		e->cores[i].y = node.y;
		e->cores[i].address = clamp32(node.address);
		count++;
	}
	e->count = count;
	submit(e, 0);
	return 0;
}

/*
 * Sends an allocation. The probe is in one of these, by the library's `argument`:
 * - GraphTracker::track_allocate(const Buffer*) or notify_buffer_allocated(const Buffer*): the Buffer has all
 * its fields.
 * - the function that inserts a Buffer* into an allocator's set, and takes it by reference: the Buffer has no
 * address yet; block_taken has just computed it.
 */
static __always_inline int allocated(struct pt_regs *ctx, __u64 first, __u64 second, __u32 library)
{
	struct task_struct *current = bpf_get_current_task_btf();
	__u64 buffer = second, address = 0, base, time;
	__u64 pid_tgid = (__u64)current->tgid << 32 | (__u32)current->pid;
	struct tt_counters *c;
	struct tt_layout *l;
	struct tt_alloc *e;
	struct tt_task *task;
	struct window w = {}; /* the verifier of Linux 5.15 does not see that a read fills it */
	int urgent = 1;

	if (skipped(pid_tgid >> 32))
		return 0;
	c = counters_of_cpu();
	l = bpf_map_lookup_elem(&layouts, &library);
	if (!c || !l)
		return 0;
	/* If the size is computed, no probe before this one has created the thread's state. */
	task = bpf_task_storage_get(&tasks, current, NULL, l->computed ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (l->argument == TT_ARGUMENT_FIRST) {
		buffer = first;
	} else if (l->argument == TT_ARGUMENT_STORED) {
		if (!task || !task->reserved)
			return 0; /* the insertion is into another set, without an allocation */
		address = task->address;
		if (address == TT_UNKNOWN_ADDRESS ||
		    bpf_probe_read_user(&buffer, sizeof(buffer), (void *)second)) {
			unread(c, TT_ALLOC, library);
			return 0;
		}
	}
	if (read_window(&w, l, buffer, &base)) {
		unread(c, TT_ALLOC, library);
		return 0;
	}
	if (u8_at(&w, l->hooked) == 1) {
		COUNT(c->hooked);
		return object_event(TT_HOOKED, buffer, library, 0);
	}
	time = bpf_ktime_get_ns();
	if (wants_stacks())
		send_stack(time, ctx);
	if (l->sharded && u32_at(&w, l->layout) != TT_INTERLEAVED)
		send_sharded(time, base, library);
	if (l->per_core && u32_at(&w, l->layout) != TT_INTERLEAVED)
		send_per_core(time, base, library);
	e = reserve(c, TT_ALLOC, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, TT_ALLOC, pid_tgid, library);
	if (task) {
		e->head.per_bank = clamp32(task->reserved);
		task->reserved = 0;
		task->buffer = buffer;
		urgent = is_new(task, u64_at(&w, l->device));
	}
	if (!e->head.per_bank && !l->computed)
		COUNT(c->unreserved);
	e->head.memory = u32_at(&w, l->type) > 0xff ? 0xff : u32_at(&w, l->type);
	e->head.layout = u32_at(&w, l->layout);
	e->buffer = buffer;
	e->device = u64_at(&w, l->device);
	e->allocator = u64_at(&w, l->allocator);
	e->size = u64_at(&w, l->size);
	e->address = clamp32(l->argument == TT_ARGUMENT_STORED ? address : u64_at(&w, l->address));
	e->page_size = clamp32(u64_at(&w, l->page_size));
	submit(e, urgent);
	return 0;
}

/* PersistentL1Arena::allocate(…) and deallocate(id). User space reads the arenas of the process. */
SEC("uprobe.multi")
int BPF_UPROBE(persistent_changed)
{
	return object_event(TT_PERSISTENT, 0, library_of(ctx), 1);
}

/* AllocatorImpl::shrink_allocator_size(…) and reset_allocator_size(…) */
SEC("uprobe.multi")
int BPF_UPROBE(allocator_resized, __u64 allocator)
{
	return object_event(TT_RESIZED, allocator, library_of(ctx), 1);
}

SEC("uprobe.multi")
int BPF_UPROBE(buffer_allocated, __u64 first, __u64 second)
{
	return allocated(ctx, first, second, library_of(ctx));
}

/*
 * A buffer is freed. A stack is hundreds of times as large as the free's own record, and a program can free
 * all it has in a moment: half of the ring stays for what the accounts need.
 */
static __always_inline int freed(struct pt_regs *ctx, __u64 buffer, __u64 library)
{
	__u64 time = bpf_ktime_get_ns();

	if (wants_stacks() && !skipped(bpf_get_current_pid_tgid() >> 32) &&
	    bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) < wakeup_bytes)
		send_stack(time, ctx);
	return object_event_at(time, TT_FREE, buffer, library, 0);
}

/*
 * GraphTracker::track_deallocate(Buffer*) or AllocatorImpl::deallocate_buffer(Buffer*): the Buffer is about
 * to be freed. The accounts have its fields. Reading them again would cost more than the rest of this probe.
 */
SEC("uprobe.multi")
int BPF_UPROBE(buffer_freed, void *self, __u64 buffer)
{
	return freed(ctx, buffer, library_of(ctx));
}

/* notify_buffer_deallocated(Buffer*) */
SEC("uprobe.multi")
int BPF_UPROBE(buffer_freed_first, __u64 buffer)
{
	return freed(ctx, buffer, library_of(ctx));
}

/* Wakes the reader: the event is rare, and user space reads the object while it exists. */
#define TT_URGENT 1

/* AllocatorImpl::deallocate_buffers() and ~AllocatorImpl(): all of its buffers are free. */
SEC("uprobe.multi")
int BPF_UPROBE(allocator_gone, __u64 self)
{
	return object_event(TT_ALLOCATOR_GONE, self, library_of(ctx), TT_URGENT);
}

/* The kernel's PF_FORKNOEXEC. */
#define TT_FORKED 0x40

/* Device::initialize(...), MeshDevice::initialize(...) */
SEC("uprobe.multi")
int BPF_UPROBE(device_opened, __u64 self)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct tt_own_key key = {self, leader->tgid};
	__u64 started = leader->start_boottime;

	/* It may call exec before user space finds it. Watched, its exec is reported. */
	if (!filter)
		watch(key.pid);
	if (leader->flags & TT_FORKED && !skipped(key.pid) &&
	    bpf_map_update_elem(&own_devices, &key, &started, BPF_ANY)) {
		key.device = 0; /* the map is full, so the process's entries are no longer complete */
		bpf_map_delete_elem(&own_devices, &key);
	}
	return object_event(TT_DEVICE_OPEN, self, library_of(ctx), TT_URGENT);
}

/* Device::close(), MeshDevice::close() */
SEC("uprobe.multi")
int BPF_UPROBE(device_closed, __u64 self)
{
	return object_event(TT_DEVICE_CLOSE, self, library_of(ctx), TT_URGENT);
}

/*
 * detail::ProgramImpl::allocate_circular_buffers(const IDevice*) and
 * allocate_dataflow_buffers(const IDevice*): the thread places the program's buffers next.
 */
SEC("uprobe.multi")
int BPF_UPROBE(program_laid_out, __u64 program, __u64 device)
{
	struct tt_task *task;

	if (skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!task) { /* no memory for the state: cb_placed will not know the program */
		unread(counters_of_cpu(), TT_CB, library_of(ctx));
		return 0;
	}
	task->program = program;
	task->device = device;
	task->cores = 0;
	task->call++;
	return 0;
}

struct tt_cb_short {
	struct tt_cb cb;
	struct tt_range ranges[1];
};

struct tt_cb_long {
	struct tt_cb cb;
	struct tt_range ranges[TT_CB_RANGES];
};

/* A buffer that is sent in several records, and the address of its ranges. */
struct parts {
	struct tt_cb cb;
	__u64 ranges;
};

/*
 * Sends the next record of a buffer. Returns 1 if no range is left, or the record is lost. The function is
 * not static, so that the verifier checks it once and not once per iteration: Linux 5.15 lacks bpf_loop.
 */
__attribute__((noinline)) int send_part(struct parts *p)
{
	struct tt_counters *c = counters_of_cpu();
	struct tt_cb_long *e;
	__u64 left;

	if (!p)
		return 1;
	left = p->cb.count > p->cb.first ? p->cb.count - p->cb.first : 0;
	if (!left)
		return 1;
	e = reserve(c, TT_CB, sizeof(*e));
	if (!e)
		return 1;
	e->cb = p->cb;
	/*
	 * The compiler must not compute `left` twice: the verifier would not see the bound of the one that is
	 * used.
	 */
	asm volatile("" : "+r"(left));
	if (left > TT_CB_RANGES)
		left = TT_CB_RANGES;
	if (bpf_probe_read_user(e->ranges, left * sizeof(struct tt_range),
				(void *)(p->ranges + p->cb.first * sizeof(struct tt_range)))) {
		dropped(e, c, TT_CB, p->cb.head.library);
		return 1;
	}
	submit(e, 0);
	p->cb.first += TT_CB_RANGES;
	return 0;
}

/* Sends a circular or dataflow buffer with all its core ranges. */
static __always_inline void send_cb(struct tt_cb *cb, struct tt_counters *c, __u64 core_range_set)
{
	struct vector r;
	struct parts p;
	__u64 count;

	if (bpf_probe_read_user(&r, sizeof(r), (void *)core_range_set) || r.end < r.begin) {
		unread(c, TT_CB, cb->head.library);
		return;
	}
	count = (r.end - r.begin) / sizeof(struct tt_range);
	if (count > TT_CB_RANGES * TT_CB_RECORDS) {
		COUNT(c->truncated);
		missed(TT_CB, cb->head.library);
		count = TT_CB_RANGES * TT_CB_RECORDS;
	}
	cb->count = count;
	if (count <= 1) {
		struct tt_cb_short *e = reserve(c, TT_CB, sizeof(*e));

		if (!e)
			return;
		e->cb = *cb;
		if (bpf_probe_read_user(e->ranges, sizeof(e->ranges),
					(void *)(count ? r.begin : core_range_set))) {
			dropped(e, c, TT_CB, cb->head.library);
			return;
		}
		submit(e, 0);
		return;
	}
	p.cb = *cb;
	p.ranges = r.begin;
	for (int i = 0; i < TT_CB_RECORDS; i++)
		if (send_part(&p))
			return;
}

/*
 * GraphTracker::track_allocate_cb(const CoreRangeSet&, address, size, globally
 * allocated, const IDevice*)
 */
SEC("uprobe.multi")
int BPF_UPROBE(cb_placed, void *self, __u64 core_range_set, __u64 address, __u64 size)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct tt_counters *c;
	struct tt_task *task;
	struct tt_cb cb = {};

	if (skipped(pid_tgid >> 32))
		return 0;
	c = counters_of_cpu();
	if (!c)
		return 0;
	fill(&cb.head, TT_CB, pid_tgid, library_of(ctx));
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	if (task) {
		cb.program = task->program;
		cb.call = task->call;
		cb.on = task->device;
	}
	cb.address = address;
	cb.size = size;
	/* The fifth and sixth arguments, by the x86-64 calling convention. */
	cb.kind = (__u8)ctx->r8 ? TT_CB_GLOBAL : TT_CB_CIRCULAR;
	cb.device = ctx->r9;
	send_cb(&cb, c, core_range_set);
	return 0;
}

/*
 * detail::ProgramImpl::reserve_program_local_l1(const IDevice*, const
 * CoreRangeSet&): allocate_dataflow_buffers calls it with the cores of the buffer
 * that it places next. It also calls it with sets on the stack, each with a single
 * range of a buffer: these are ignored.
 */
SEC("uprobe.multi")
int BPF_UPROBE(l1_reserved, __u64 program, __u64 device, __u64 core_range_set)
{
	struct tt_task *task;
	__u64 stack = PT_REGS_SP(ctx);

	if (skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	if (task && (core_range_set < stack || core_range_set - stack > 64 << 10))
		task->cores = core_range_set;
	return 0;
}

/* Sends a dataflow buffer on the cores of one of the program's CircularBufferAllocators. */
static __always_inline void send_marked(struct tt_cb *cb, struct tt_counters *c, __u64 allocator)
{
	struct tt_cb_short *e = reserve(c, TT_CB, sizeof(*e));

	if (!e)
		return;
	cb->count = 1;
	e->cb = *cb;
	if (bpf_probe_read_user(e->ranges, sizeof(e->ranges), (void *)allocator)) {
		dropped(e, c, TT_CB, cb->head.library);
		return;
	}
	submit(e, 0);
}

/*
 * detail::ProgramImpl::CircularBufferAllocator::mark_address(address, size,
 * base): called, not inlined, when a dataflow buffer is placed: once for each
 * allocator that has some of its cores. If l1_reserved has set the cores, the first
 * call sends all of them. Before 0.79 each call sends those of its allocator.
 */
SEC("uprobe.multi")
int BPF_UPROBE(dfb_placed, __u64 self, __u64 address, __u64 size)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid(), cores;
	__u32 library = library_of(ctx);
	struct tt_counters *c;
	struct tt_layout *l;
	struct tt_task *task;
	struct tt_cb cb = {};

	if (skipped(pid_tgid >> 32))
		return 0;
	c = counters_of_cpu();
	l = bpf_map_lookup_elem(&layouts, &library);
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	if (!c || !l || !task || !(task->cores || l->marked))
		return 0;
	cores = task->cores;
	task->cores = 0;
	fill(&cb.head, TT_CB, pid_tgid, library);
	cb.program = task->program;
	cb.call = task->call;
	cb.device = task->device;
	cb.on = task->device;
	cb.address = address;
	cb.size = size;
	cb.kind = TT_CB_DATAFLOW;
	if (cores)
		send_cb(&cb, c, cores);
	else
		send_marked(&cb, c, self);
	return 0;
}

/*
 * detail::ProgramImpl::allocate_scratchpads(const IDevice*): later, user space reads
 * from the program's kernels where their scratchpads are.
 */
SEC("uprobe.multi")
int BPF_UPROBE(scratchpads_laid_out, __u64 program, __u64 device)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct tt_pair *e;

	if (skipped(pid_tgid >> 32))
		return 0;
	e = reserve(counters_of_cpu(), TT_SCRATCHPADS, sizeof(*e));
	if (!e)
		return 0;
	fill(&e->head, TT_SCRATCHPADS, pid_tgid, library_of(ctx));
	e->owner = program;
	e->member = device;
	submit(e, 0);
	return 0;
}

/* Sends that a program or workload is being destroyed, with its launches, which it removes from the map. */
static __always_inline int object_gone(enum tt_kind kind, __u64 object, __u64 library)
{
	struct tt_launch_key key = {.object = object, .pid = bpf_get_current_pid_tgid() >> 32};
	struct tt_launch none = {}, *l;
	struct tt_gone *e;

	if (skipped(key.pid))
		return 0;
	e = reserve(counters_of_cpu(), kind, sizeof(*e));
	if (!e)
		return 0; /* the launches stay in the map, where user space reads them */
	fill(&e->object.head, kind, bpf_get_current_pid_tgid(), library);
	e->object.object = object;
	l = bpf_map_lookup_elem(&launches, &key);
	e->launches = l ? *l : none;
	if (l)
		bpf_map_delete_elem(&launches, &key);
	submit(e, 0);
	return 0;
}

/* ~ProgramImpl(): its circular buffers are free, and its kernels are unloaded. */
SEC("uprobe.multi")
int BPF_UPROBE(program_gone, __u64 self)
{
	return object_gone(TT_PROGRAM_GONE, self, library_of(ctx));
}

/* ~MeshWorkloadImpl() */
SEC("uprobe.multi")
int BPF_UPROBE(workload_gone, __u64 self)
{
	return object_gone(TT_WORKLOAD_GONE, self, library_of(ctx));
}

/* Sends an owner and its new member. `member` is the address of a pointer to it. */
static __always_inline int pair_event(enum tt_kind kind, __u64 owner, __u64 member, __u64 library)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct tt_counters *c;
	struct tt_pair *e;

	if (skipped(pid_tgid >> 32))
		return 0;
	c = counters_of_cpu();
	if (!c)
		return 0;
	if (bpf_probe_read_user(&member, sizeof(member), (void *)member)) {
		unread(c, kind, library);
		return 0;
	}
	e = reserve(c, kind, sizeof(*e));
	if (!e)
		return 0;
	fill(&e->head, kind, pid_tgid, library);
	e->owner = owner;
	e->member = member;
	submit(e, 0);
	return 0;
}

/* detail::ProgramImpl::add_kernel(const std::shared_ptr<Kernel>&, ...) */
SEC("uprobe.multi")
int BPF_UPROBE(kernel_added, __u64 program, __u64 kernel)
{
	return pair_event(TT_KERNEL_ADDED, program, kernel, library_of(ctx));
}

/*
 * MeshWorkloadImpl::add_program(const MeshCoordinateRange&, Program&&). A Program is a pointer to a
 * ProgramImpl. The size of a MeshCoordinateRange is unknown here. If TT_MESH_RANGE bytes cannot be read,
 * those up to the end of its page are.
 */
SEC("uprobe.multi")
int BPF_UPROBE(program_added, __u64 workload, __u64 range, __u64 program)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid(), library = library_of(ctx), here;
	struct tt_counters *c;
	struct tt_program_added *e;

	if (skipped(pid_tgid >> 32))
		return 0;
	c = counters_of_cpu();
	if (!c)
		return 0;
	if (bpf_probe_read_user(&program, sizeof(program), (void *)program)) {
		unread(c, TT_PROGRAM_ADDED, library);
		return 0;
	}
	e = reserve(c, TT_PROGRAM_ADDED, sizeof(*e));
	if (!e)
		return 0;
	fill(&e->head, TT_PROGRAM_ADDED, pid_tgid, library);
	e->workload = workload;
	e->program = program;
	e->range = range;
	e->length = sizeof(e->bytes);
	if (bpf_probe_read_user(e->bytes, sizeof(e->bytes), (void *)range)) {
		here = 4096 - (range & 4095);
		barrier_var(here);
		if (here > sizeof(e->bytes))
			here = sizeof(e->bytes);
		e->length = bpf_probe_read_user(e->bytes, here, (void *)range) ? 0 : here;
	}
	submit(e, 0);
	return 0;
}

/*
 * DataMovementKernel::read_binaries(IDevice*, ...), and those of other kernels: the thread reads the files
 * next.
 */
SEC("uprobe.multi")
int BPF_UPROBE(kernel_read, __u64 kernel, __u64 device)
{
	struct tt_task *task;

	if (skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!task) { /* no memory for the state: binary_read will skip the files */
		unread(counters_of_cpu(), TT_KERNEL_FILE, library_of(ctx));
		return 0;
	}
	task->kernel = kernel;
	task->kernel_device = device;
	return 0;
}

/* Sends a text about an object. Of a text longer than TT_TEXT it sends the end. */
static __always_inline void send_text(enum tt_kind kind, __u64 pid_tgid, __u64 library, __u64 object,
				      __u64 device, __u64 text, __u64 length)
{
	struct tt_counters *c = counters_of_cpu();
	struct tt_text *e;
	__u64 left = 0;

	if (!c)
		return;
	if (length > TT_TEXT) {
		COUNT(c->clipped);
		left = length - TT_TEXT;
		length = TT_TEXT;
	}
	e = reserve(c, kind, sizeof(*e));
	if (!e)
		return;
	fill(&e->head, kind, pid_tgid, library);
	e->object = object;
	e->device = device;
	e->length = length;
	e->left = clamp32(left);
	if (bpf_probe_read_user(e->text, length, (void *)(text + left))) {
		dropped(e, c, kind, library);
		return;
	}
	submit(e, 0);
}

/*
 * llrt::get_risc_binary(const std::string& path, ...): a binary of the thread's
 * kernel or, if it has none, of firmware, which is ignored. A std::string begins with
 * pointer and length. Up to 0.62 the path is a std::string_view, passed as length and
 * pointer in two registers.
 */
SEC("uprobe.multi")
int BPF_UPROBE(binary_read, __u64 first, __u64 second)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u64 path[2] = {second, first};
	struct tt_task *task;

	if (skipped(pid_tgid >> 32))
		return 0;
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	if (!task || !task->kernel)
		return 0;
	/* A first argument below 4096 is a length: no object is in the first page. */
	if (first >= 4096 && bpf_probe_read_user(path, sizeof(path), (void *)first)) {
		unread(counters_of_cpu(), TT_KERNEL_FILE, library_of(ctx));
		return 0;
	}
	send_text(TT_KERNEL_FILE, pid_tgid, library_of(ctx), task->kernel, task->kernel_device, path[0],
		  path[1]);
	return 0;
}

/* Inspector::mesh_workload_set_operation_name_and_parameters(const MeshWorkloadImpl*, std::string_view, ...)
 */
SEC("uprobe.multi")
int BPF_UPROBE(workload_named, __u64 workload, __u64 length, __u64 text)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();

	if (!skipped(pid_tgid >> 32))
		send_text(TT_WORKLOAD_NAMED, pid_tgid, library_of(ctx), workload, 0, text, length);
	return 0;
}

/*
 * detail::ProgramImpl::set_kernels_bin_buffer(const std::shared_ptr<Buffer>&), which
 * MeshWorkloadImpl::load_binaries calls with a view of the Buffer that the thread
 * allocated last. User space checks that by the address.
 */
SEC("uprobe.multi")
int BPF_UPROBE(kernels_copied, __u64 program, __u64 buffer)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid(), base;
	__u32 library = library_of(ctx);
	struct tt_counters *c;
	struct tt_layout *l;
	struct tt_task *task;
	struct tt_copy *e;
	struct window w = {}; /* the verifier of Linux 5.15 does not see that a read fills it */

	if (skipped(pid_tgid >> 32))
		return 0;
	c = counters_of_cpu();
	l = bpf_map_lookup_elem(&layouts, &library);
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	if (!c || !l || !task)
		return 0;
	if (bpf_probe_read_user(&buffer, sizeof(buffer), (void *)buffer) ||
	    read_window(&w, l, buffer, &base)) {
		unread(c, TT_KERNEL_COPY, library);
		return 0;
	}
	e = reserve(c, TT_KERNEL_COPY, sizeof(*e));
	if (!e)
		return 0;
	fill(&e->head, TT_KERNEL_COPY, pid_tgid, library);
	e->program = program;
	e->buffer = task->buffer;
	e->address = clamp32(u64_at(&w, l->address));
	submit(e, 0);
	return 0;
}

/* Counts and sends that a launch could not be counted. */
__attribute__((noinline)) int uncounted(__u64 library)
{
	struct tt_counters *c = counters_of_cpu();

	if (c)
		COUNT(c->uncounted);
	return missed(TT_KINDS, library);
}

/*
 * Counts a launch. EnqueueMeshWorkload(queue, workload, ...), LaunchProgram(device, program, ...) and others
 * have a MeshWorkload& or Program& as second argument. Both are pointers to an implementation, which is
 * counted.
 */
static __always_inline int launch(struct pt_regs *ctx, __u64 what, __u32 library)
{
	struct tt_launch_key key = {.pid = bpf_get_current_pid_tgid() >> 32};
	struct tt_launch first = {.count = 1}, *l;

	if (skipped(key.pid))
		return 0;
	if (bpf_probe_read_user(&key.object, sizeof(key.object), (void *)what)) {
		uncounted(library);
		return 0;
	}
	first.last = bpf_ktime_get_ns();
	l = bpf_map_lookup_elem(&launches, &key);
	if (!l) {
		bpf_probe_read_user(&first.caller, sizeof(first.caller), (void *)PT_REGS_SP(ctx));
		if (!bpf_map_update_elem(&launches, &key, &first, BPF_NOEXIST))
			return 0;
		/* Another thread has added it just now, or the map is full. */
		l = bpf_map_lookup_elem(&launches, &key);
	}
	if (!l) {
		uncounted(library);
		return 0;
	}
	__sync_fetch_and_add(&l->count, 1);
	l->last = first.last;
	return 0;
}

SEC("uprobe.multi")
int BPF_UPROBE(launched, __u64 where, __u64 what)
{
	return launch(ctx, what, library_of(ctx));
}

/*
 * The BPF program at all points of a library, so that they share one link: to remove a link, the kernel
 * waits until no CPU runs its BPF program, one link after the other. It handles the most frequent points
 * itself, because a tail call costs time.
 */
SEC("uprobe.multi")
int BPF_UPROBE(at_point, __u64 first, __u64 second)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 library = library_in(cookie);
	__u32 point = (cookie & ((1 << TT_COOKIE_TYPES) - 1)) / TT_LIBRARIES;

	switch (point) {
	case TT_OFTEN_ALLOCATED:
		return allocated(ctx, first, second, library);
	case TT_OFTEN_FREED_FIRST:
		second = first;
		/* fall through */
	case TT_OFTEN_FREED:
		return freed(ctx, second, library);
	case TT_OFTEN_LAUNCHED:
		return launch(ctx, second, library);
	}
	bpf_tail_call(ctx, &points, point);
	return 0;
}

/* Sends what happened to a trace. `number` is the address of its 32-bit number; 0 if the function has none.
 */
static __always_inline int trace_event(enum tt_trace_step step, __u64 queue, __u64 number, __u64 library)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct tt_counters *c;
	struct tt_trace *e;
	__u32 n = 0;

	if (skipped(pid_tgid >> 32))
		return 0;
	c = counters_of_cpu();
	if (!c)
		return 0;
	if (number && bpf_probe_read_user(&n, sizeof(n), (void *)number)) {
		unread(c, TT_TRACE, library);
		return 0;
	}
	e = reserve(c, TT_TRACE, sizeof(*e));
	if (!e)
		return 0;
	fill(&e->head, TT_TRACE, pid_tgid, library);
	e->queue = queue;
	e->number = n;
	e->step = step;
	submit(e, 0);
	return 0;
}

/* FDMeshCommandQueue::record_begin(const MeshTraceId&, ...) */
SEC("uprobe.multi")
int BPF_UPROBE(trace_begun, __u64 queue, __u64 number)
{
	return trace_event(TT_TRACE_BEGUN, queue, number, library_of(ctx));
}

/* FDMeshCommandQueue::record_end() */
SEC("uprobe.multi")
int BPF_UPROBE(trace_captured, __u64 queue)
{
	return trace_event(TT_TRACE_CAPTURED, queue, 0, library_of(ctx));
}

/* MeshDevice::release_mesh_trace(const MeshTraceId&) */
SEC("uprobe.multi")
int BPF_UPROBE(trace_released, __u64 device, __u64 number)
{
	return trace_event(TT_TRACE_RELEASED, 0, number, library_of(ctx));
}

/* FDMeshCommandQueue::enqueue_trace(const MeshTraceId&, ...) */
SEC("uprobe.multi")
int BPF_UPROBE(trace_replayed, __u64 queue, __u64 number)
{
	return trace_event(TT_TRACE_REPLAYED, queue, number, library_of(ctx));
}

/* Returns room for a mark without allocators, or NULL if the ring is full. */
static __always_inline struct tt_mark *reserve_mark(enum tt_mark_step step, __u64 object, __u64 unique,
						    __u64 library)
{
	struct tt_mark *e = reserve(counters_of_cpu(), TT_MARK, sizeof(*e));

	if (!e)
		return NULL;
	fill(&e->head, TT_MARK, bpf_get_current_pid_tgid(), library);
	e->object = object;
	e->unique = unique;
	__builtin_memset(e->allocators, 0, sizeof(e->allocators));
	e->count = 0;
	e->step = step;
	return e;
}

/*
 * AllocatorImpl::record_allocation_if_unsafe(Buffer*): called if the runtime tracks allocations and there is
 * a trace. It comes before buffer_allocated of the same Buffer or, if that probes the insertion into an
 * allocator's set, after it.
 */
SEC("uprobe.multi")
int BPF_UPROBE(allocation_tracked, __u64 allocator, __u64 buffer)
{
	__u32 library = library_of(ctx);
	struct tt_layout *l = bpf_map_lookup_elem(&layouts, &library);
	__u64 fields = buffer, unique = 0;
	struct tt_mark *e;

	if (!l || skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	if (l->unique &&
	    ((l->indirect && bpf_probe_read_user(&fields, sizeof(fields), (void *)(buffer + l->base))) ||
	     bpf_probe_read_user(&unique, sizeof(unique), (void *)(fields + l->unique)))) {
		unread(counters_of_cpu(), TT_MARK, library);
		return 0;
	}
	e = reserve_mark(TT_MARK_TRACKED, buffer, unique, library);
	if (!e)
		return 0;
	e->allocators[0] = allocator;
	e->count = 1;
	submit(e, 0);
	return 0;
}

/* push_corruptible_allocation_scope(const std::vector<AllocatorImpl*>&) */
SEC("uprobe.multi")
int BPF_UPROBE(scope_begins, __u64 allocators)
{
	__u32 library = library_of(ctx);
	struct tt_mark *e;
	struct vector v;
	__u64 size;

	if (skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	if (bpf_probe_read_user(&v, sizeof(v), (void *)allocators)) {
		unread(counters_of_cpu(), TT_MARK, library);
		return 0;
	}
	e = reserve_mark(TT_MARK_SCOPE_BEGINS, 0, 0, library);
	if (!e)
		return 0;
	size = v.end - v.begin;
	e->count = size / sizeof(e->allocators[0]);
	if (size > sizeof(e->allocators))
		size = sizeof(e->allocators);
	if (size && bpf_probe_read_user(e->allocators, size, (void *)v.begin)) {
		dropped(e, counters_of_cpu(), TT_MARK, library);
		return 0;
	}
	submit(e, 0);
	return 0;
}

static __always_inline int mark_event(enum tt_mark_step step, __u64 unique, __u64 library)
{
	struct tt_mark *e;

	if (skipped(bpf_get_current_pid_tgid() >> 32))
		return 0;
	e = reserve_mark(step, 0, unique, library);
	if (e)
		submit(e, 0);
	return 0;
}

/* pop_corruptible_allocation_scope() */
SEC("uprobe.multi")
int BPF_UPROBE(scope_ends)
{
	return mark_event(TT_MARK_SCOPE_ENDS, 0, library_of(ctx));
}

/* MeshDeviceImpl::remove_unsafe_tracked_id(std::size_t) */
SEC("uprobe.multi")
int BPF_UPROBE(buffer_acknowledged, __u64 device, __u64 unique)
{
	return mark_event(TT_MARK_ACKNOWLEDGED, unique, library_of(ctx));
}

/* Sends the exec or exit of a process. */
static __always_inline void task_event(enum tt_kind kind, __u32 pid, __u64 object)
{
	struct tt_object *e = reserve(counters_of_cpu(), kind, sizeof(*e));

	if (!e)
		return;
	fill(&e->head, kind, (__u64)pid << 32 | pid, 0);
	e->object = object;
	submit(e, TT_URGENT);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 from = parent->tgid, to = child->tgid;
	struct tt_own_key parents = {0, from}, childs = {0, to};
	__u64 started = child->start_boottime;

	if (from != to && bpf_map_lookup_elem(&own_devices, &parents))
		bpf_map_update_elem(&own_devices, &childs, &started, BPF_ANY);
	if (follow && from != to && is_watched(from))
		watch(to);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec, struct task_struct *task)
{
	__u32 pid = task->tgid;
	struct tt_own_key key = {0, pid};
	/* Report it for any process that may have sent records, even if user space has not found it. */
	int forked = !bpf_map_delete_elem(&own_devices, &key);
	int used = !bpf_task_storage_delete(&tasks, task);

	if (forked || used || is_watched(pid))
		task_event(TT_EXEC, pid, 0);
	return 0;
}

#define SIGNAL_GROUP_EXIT 4

/* Returns the process's status for wait(2): that of the group's exit or, without one, of its first thread. */
static __always_inline __u32 wait_status(struct task_struct *task)
{
	if (task->signal->flags & SIGNAL_GROUP_EXIT)
		return task->signal->group_exit_code;
	return task->group_leader->exit_code;
}

/* Runs for each thread. The process ends with its last thread. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit, struct task_struct *task)
{
	__u32 pid = task->tgid;
	struct tt_own_key key = {0, pid};
	__u8 *is;

	if (task->signal->live.counter > 0)
		return 0;
	bpf_map_delete_elem(&own_devices, &key);
	is = watched_at(pid);
	if (!is || !*is)
		return 0;
	*is = 0;
	task_event(TT_EXIT, pid, wait_status(task));
	return 0;
}
