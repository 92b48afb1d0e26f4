/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stacks of allocations and of failed ones, if the user asks for them. The runtime is built without frame
 * pointers, so a copy of the stack's top is sent, and user space unwinds it. Python's frames are read here,
 * because the thread changes them once it continues.
 */
#ifndef TT_STACK_H
#define TT_STACK_H

/* 1: stacks can be requested. User space sets it before loading. */
volatile const __u8 stacks = 0;
/* User space sets it to 1 while nobody requests stacks. */
__u32 stacks_paused = 0;

struct thread_struct {
	unsigned long fsbase;
} __attribute__((preserve_access_index));

struct task_struct___thread {
	struct thread_struct thread;
} __attribute__((preserve_access_index));

/* Python's layout by process. User space adds it when it first examines the process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct tt_python);
} pythons SEC(".maps");

const struct tt_stack *unused_stack __attribute__((unused));
const struct tt_refusal *unused_refusal __attribute__((unused));

static __always_inline __u64 user_u64(__u64 address)
{
	__u64 v = 0;

	bpf_probe_read_user(&v, sizeof(v), (void *)address);
	return v;
}

/* Returns the PyThreadState of this thread: the one with its pthread_self(). */
static __always_inline __u64 python_thread(const struct tt_python *p)
{
	struct task_struct___thread *task = (void *)bpf_get_current_task_btf();
	__u64 self = BPF_CORE_READ(task, thread.fsbase);
	__u64 t = user_u64(user_u64(p->runtime + p->interpreter) + p->threads);

	for (int i = 0; i < TT_PYTHON_THREADS && t; i++) {
		if (user_u64(t + p->thread_id) == self)
			return t;
		t = user_u64(t + p->next);
	}
	return 0;
}

static __always_inline void read_python(struct tt_stack *e, const struct tt_python *p)
{
	__u64 f = python_thread(p);
	__u8 owner;

	if (!f)
		return;
	f = user_u64(f + p->frame);
	if (p->indirect)
		f = user_u64(f);
	for (int i = 0; i < TT_PYTHON_STEPS && f; i++) {
		if (e->frames >= TT_PYTHON_FRAMES) {
			e->cut = 1;
			break;
		}
		owner = 0;
		if (p->owner)
			bpf_probe_read_user(&owner, sizeof(owner), (void *)(f + p->owner));
		if (owner != p->c_owned || !p->owner) {
			struct tt_python_frame *to = &e->python[e->frames & (TT_PYTHON_FRAMES - 1)];

			to->code = user_u64(f + p->code);
			to->instruction = user_u64(f + p->instruction);
			to->identity = user_u64(to->code + p->identity);
			e->frames++;
		}
		f = user_u64(f + p->back);
	}
}

static __always_inline int wants_stacks(void)
{
	return stacks && !stacks_paused;
}

static __noinline int send_stack(__u64 time, struct pt_regs *ctx)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u32 pid = pid_tgid >> 32;
	struct tt_python *p;
	struct tt_stack *e;

	e = reserve(counters_of_cpu(), TT_STACK, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, TT_STACK, pid_tgid, 0);
	e->ip = PT_REGS_IP(ctx);
	e->sp = PT_REGS_SP(ctx);
	e->bp = PT_REGS_FP(ctx);
	e->bx = ctx->rbx;
	e->r12 = ctx->r12;
	e->r13 = ctx->r13;
	e->r14 = ctx->r14;
	e->r15 = ctx->r15;
	e->frames = 0;
	e->cut = 0;
	e->length = 0;
	e->unused = 0;
	for (int i = 0; i < TT_STACK_PIECES; i++) {
		if (bpf_probe_read_user(&e->stack[i * TT_STACK_PIECE], TT_STACK_PIECE,
					(void *)(e->sp + i * TT_STACK_PIECE)))
			break;
		e->length += TT_STACK_PIECE;
	}
	p = bpf_map_lookup_elem(&pythons, &pid);
	if (p)
		read_python(e, p);
	submit(e, 0);
	return 0;
}

/*
 * Sends the arguments of tt_throw_impl<...>(file, line, _, _, const std::string_view& format, const
 * Args&...). The addresses of Args are passed: the first in r9, the others on the stack. The second of Args
 * is a text.
 */
static __always_inline int refuse(struct pt_regs *ctx, __u32 clash)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u64 slots = PT_REGS_SP(ctx), text[2] = {}, format[2] = {}, at, time;
	struct tt_counters *c = counters_of_cpu();
	struct tt_refusal *e;

	if (!c || skipped(pid_tgid >> 32))
		return 0;
	time = bpf_ktime_get_ns();
	if (wants_stacks())
		send_stack(time, ctx);
	e = reserve(c, TT_REFUSED, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, TT_REFUSED, pid_tgid, library_of(ctx));
	e->clash = clash;
	e->length = 0;
	e->text_length = 0;
	e->unused = 0;
	e->args[0] = user_u64(ctx->r9);
	for (int i = 1; i < TT_REFUSAL_ARGS; i++)
		e->args[i] = user_u64(user_u64(slots + 8 * i));
	/* A std::string_view is a length and a pointer, a std::string a pointer and a length. */
	at = user_u64(slots + 8);
	bpf_probe_read_user(text, sizeof(text), (void *)at);
	if (clash) {
		at = text[0];
		text[0] = text[1];
		text[1] = at;
	}
	if (text[0] > sizeof(e->text))
		text[0] = sizeof(e->text);
	barrier_var(text[0]);
	if (text[0] <= sizeof(e->text) && !bpf_probe_read_user(e->text, text[0], (void *)text[1]))
		e->text_length = text[0];
	bpf_probe_read_user(format, sizeof(format), (void *)ctx->r8);
	at = format[1];
	if (at > sizeof(e->format))
		at = sizeof(e->format);
	barrier_var(at);
	if (at <= sizeof(e->format) && !bpf_probe_read_user(e->format, at, (void *)format[0]))
		e->length = at;
	if (!e->length)
		COUNT(c->unread[TT_REFUSED]);
	submit(e, 1);
	return 0;
}

/* BankManager::allocate_buffer found no room. */
SEC("uprobe.multi")
int BPF_UPROBE(out_of_memory)
{
	return refuse(ctx, 0);
}

/* ProgramImpl::validate_circular_buffer_region found that circular buffers overlap L1 buffers. */
SEC("uprobe.multi")
int BPF_UPROBE(buffers_clash)
{
	return refuse(ctx, 1);
}

#endif
