/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stacks of allocations and frees, if the user asks for them, and of each failure. The runtime is built
 * without frame pointers, so a copy of the stack's top is sent, and user space unwinds it. Python's frames
 * are read here, because the thread changes them once it continues.
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

/* The code objects that were sent. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct tt_code_key);
	__type(value, __u64);
} codes SEC(".maps");

const struct tt_stack *unused_stack __attribute__((unused));
const struct tt_code *unused_code __attribute__((unused));
const struct tt_refusal *unused_refusal __attribute__((unused));
const enum tt_type *unused_type __attribute__((unused));

static __always_inline __u64 user_u64(__u64 address)
{
	__u64 v = 0;

	bpf_probe_read_user(&v, sizeof(v), (void *)address);
	return v;
}

/* Reads a pointer. If that fails, the result is 0, and unread is set. */
static __always_inline __u64 pointer_at(__u64 address, __u32 *unread)
{
	__u64 v = 0;

	if (bpf_probe_read_user(&v, sizeof(v), (void *)address))
		*unread = 1;
	return v;
}

/* Returns the PyThreadState of this thread: the one with its pthread_self(). 0: it is not Python's, or
 * unread. */
static __always_inline __u64 python_thread(const struct tt_python *p, __u32 *unread)
{
	struct task_struct___thread *task = (void *)bpf_get_current_task_btf();
	__u64 self = BPF_CORE_READ(task, thread.fsbase);
	__u64 t = pointer_at(pointer_at(p->runtime + p->interpreter, unread) + p->threads, unread);

	for (int i = 0; i < TT_PYTHON_THREADS && t; i++) {
		if (pointer_at(t + p->thread_id, unread) == self)
			return t;
		t = pointer_at(t + p->next, unread);
	}
	if (t)
		*unread = 1; /* there are more threads */
	return 0;
}

/* Copies the text of a str. Returns 1 if nothing is missing. */
static __always_inline __u32 read_text(struct tt_code_text *to, __u8 *bytes, __u32 room, __u64 str,
				       const struct tt_python *p)
{
	__u64 length = 0, from = p->compact;
	__u32 state = 0, kind, whole = 1;

	to->length = 0;
	to->kind = 1;
	if (bpf_probe_read_user(&length, sizeof(length), (void *)(str + 16)) ||
	    bpf_probe_read_user(&state, sizeof(state), (void *)(str + 32)))
		return 0;
	kind = state >> 2 & 7;
	if (state >> 6 & 1) {
		from = p->ascii;
		kind = 1;
	}
	if (kind != 1 && kind != 2 && kind != 4)
		return 0;
	if (length > room / kind) {
		length = room / kind;
		whole = 0;
	}
	length *= kind;
	barrier_var(length);
	if (length > room || bpf_probe_read_user(bytes, length, (void *)(str + from)))
		return 0;
	to->length = length;
	to->kind = kind;
	return whole;
}

/*
 * Sends a code object, unless that was done. This function is global, so that the verifier checks it once,
 * not for each frame.
 */
__noinline int send_code(__u64 time, __u64 code, __u64 identity)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid(), *sent, table, length = 0;
	struct tt_code_key key = {};
	struct tt_python *p;
	struct tt_code *e;
	__u32 pid = pid_tgid >> 32, whole;

	p = bpf_map_lookup_elem(&pythons, &pid);
	if (!p)
		return 0;
	key.process = p->number;
	key.code = code;
	key.identity = identity;
	sent = bpf_map_lookup_elem(&codes, &key);
	if (sent && (!p->lasts || time - *sent < p->lasts))
		return 0;
	e = reserve(counters_of_cpu(), TT_CODE, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, TT_CODE, pid_tgid, 0);
	e->code = code;
	e->identity = identity;
	e->unused = 0;
	e->lines_length = 0;
	e->first_line = 0;
	whole = read_text(&e->name, e->name_text, sizeof(e->name_text), user_u64(code + p->name), p);
	whole &= read_text(&e->file, e->file_text, sizeof(e->file_text), user_u64(code + p->filename), p);
	if (bpf_probe_read_user(&e->first_line, sizeof(e->first_line), (void *)(code + p->first_line)))
		whole = 0;
	table = user_u64(code + p->line_table);
	if (bpf_probe_read_user(&length, sizeof(length), (void *)(table + 16)))
		whole = 0;
	if (length > sizeof(e->lines)) {
		length = sizeof(e->lines);
		whole = 0;
	}
	barrier_var(length);
	if (length <= sizeof(e->lines) && !bpf_probe_read_user(e->lines, length, (void *)(table + 32)))
		e->lines_length = length;
	else
		whole = 0;
	e->whole = whole;
	submit(e, 0);
	bpf_map_update_elem(&codes, &key, &time, BPF_ANY);
	return 0;
}

static __always_inline void read_python(struct tt_stack *e, const struct tt_python *p)
{
	__u32 unread = 0;
	__u64 f = python_thread(p, &unread);
	__u8 owner;

	if (f)
		f = pointer_at(f + p->frame, &unread);
	if (f && p->indirect)
		f = pointer_at(f, &unread);
	for (int i = 0; i < TT_PYTHON_STEPS && f; i++) {
		if (e->frames >= TT_PYTHON_FRAMES)
			break;
		owner = 0;
		if (p->owner && bpf_probe_read_user(&owner, sizeof(owner), (void *)(f + p->owner)))
			break;
		if (owner != p->c_owned || !p->owner) {
			struct tt_python_frame *to = &e->python[e->frames & (TT_PYTHON_FRAMES - 1)];

			to->code = user_u64(f + p->code);
			to->instruction = user_u64(f + p->instruction);
			to->identity = user_u64(to->code + p->identity);
			send_code(e->head.time, to->code, to->identity);
			e->frames++;
		}
		f = pointer_at(f + p->back, &unread);
	}
	if (f || unread)
		e->cut = 1;
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
 * Reads the beginning of the text at an address, a std::string_view or a std::string, and returns its length.
 * One is a length and a pointer, the other a pointer and a length; a length is less than a pointer.
 */
static __always_inline __u32 read_argument(__u8 *to, __u64 at)
{
	__u64 words[2] = {}, length, from;

	bpf_probe_read_user(words, sizeof(words), (void *)at);
	length = words[0] < words[1] ? words[0] : words[1];
	from = words[0] ^ words[1] ^ length;
	if (length > TT_REFUSAL_TEXT)
		length = TT_REFUSAL_TEXT;
	barrier_var(length);
	if (length > TT_REFUSAL_TEXT || bpf_probe_read_user(to, length, (void *)from))
		return 0;
	return length;
}

/*
 * The runtime throws because an allocation or a program finds no room. Sends the arguments of
 * tt_throw_impl<...>(file, line, _, _, const std::string_view& format, const Args&...). The addresses of Args
 * are passed: the first in r9, the others on the stack. Their types are in the cookie.
 */
SEC("uprobe.multi")
int BPF_UPROBE(failed)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	__u64 slots = PT_REGS_SP(ctx), format[2] = {}, length, time;
	__u64 types = bpf_get_attach_cookie(ctx) >> TT_COOKIE_TYPES;
	struct tt_counters *c = counters_of_cpu();
	struct tt_refusal *e;
	struct tt_task *task;

	if (!c || skipped(pid_tgid >> 32))
		return 0;
	time = bpf_ktime_get_ns();
	send_stack(time, ctx);
	e = reserve(c, TT_REFUSED, sizeof(*e));
	if (!e)
		return 0;
	fill_at(time, &e->head, TT_REFUSED, pid_tgid, library_of(ctx));
	task = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, 0);
	e->program = task ? task->program : 0;
	e->types = types;
	e->length = 0;
	e->unused = 0;
	e->args[0] = user_u64(ctx->r9);
	for (int i = 1; i < TT_REFUSAL_ARGS; i++)
		e->args[i] = user_u64(user_u64(slots + 8 * i));
	types >>= TT_REFUSAL_ARGS * TT_TYPE_BITS;
	for (int i = 0; i < TT_REFUSAL_TEXTS; i++) {
		__u64 which = types & (TT_REFUSAL_ARGS - 1), at = user_u64(slots + 8 * which);

		if (!which)
			at = ctx->r9;
		types >>= 4;
		e->lengths[i] = read_argument(&e->text[i * TT_REFUSAL_TEXT], at);
	}
	bpf_probe_read_user(format, sizeof(format), (void *)ctx->r8);
	length = format[1];
	if (length > sizeof(e->format))
		length = sizeof(e->format);
	barrier_var(length);
	if (length <= sizeof(e->format) && !bpf_probe_read_user(e->format, length, (void *)format[0]))
		e->length = length;
	if (!e->length)
		COUNT(c->unread[TT_REFUSED]);
	submit(e, 1);
	return 0;
}

#endif
