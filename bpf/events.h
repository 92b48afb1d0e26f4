/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What passes between the probes and user space: the one definition of every
 * event, layout and counter. The Go types are generated from it by bpf2go.
 *
 * Members are ordered so that no struct has padding.
 */
#ifndef TT_EVENTS_H
#define TT_EVENTS_H

enum tt_kind {
	TT_ALLOC = 1,	   /* struct tt_alloc */
	TT_FREE,	   /* struct tt_object: the Buffer */
	TT_ALLOCATOR_GONE, /* struct tt_object: the allocator */
	TT_DEVICE_OPEN,	   /* struct tt_object: a Device or MeshDevice */
	TT_DEVICE_CLOSE,   /* struct tt_object */
	TT_CB,		   /* struct tt_cb, with its core ranges */
	TT_PROGRAM_GONE,   /* struct tt_gone: the ProgramImpl, whose circular buffers are free */
	TT_EXEC,	   /* struct tt_object, no object */
	TT_EXIT,	   /* struct tt_object; its object is the status of wait(2) */
	TT_KERNEL_ADDED,   /* struct tt_pair: a ProgramImpl and its Kernel */
	TT_KERNEL_FILE,	   /* struct tt_text: a Kernel, and the file of one of its binaries */
	TT_KERNEL_COPY,	   /* struct tt_copy */
	TT_PROGRAM_ADDED,  /* struct tt_program_added */
	TT_WORKLOAD_NAMED, /* struct tt_text: a MeshWorkloadImpl, and the operation that it is of */
	TT_WORKLOAD_GONE,  /* struct tt_gone: the MeshWorkloadImpl */
	TT_SCRATCHPADS,	   /* struct tt_pair: a ProgramImpl, and the device that it is laid out on */
	TT_REFUSED,	   /* struct tt_refusal */
	TT_STACK,	   /* struct tt_stack: of the thread's TT_ALLOC or TT_REFUSED of the same time */
	TT_HOOKED,  /* struct tt_object: a Buffer that a graph-capture hook took, so that nothing was reserved
		     */
	TT_TRACE,   /* struct tt_trace */
	TT_MARK,    /* struct tt_mark */
	TT_UNREAD,  /* struct tt_object: the kind of a record that lacks, in whole or in part; TT_KINDS: a
		       launch or a ring */
	TT_SHARDED, /* struct tt_sharded: of the thread's TT_ALLOC of the same time */
	TT_KINDS,
};

/* Sizes of a bank and of a page saturate here; no bank of today is larger. */
#define TT_U32_MAX 0xffffffffU

struct tt_head {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 pid;  /* thread group */
	__u32 tid;
	__u8 kind;
	__u8 memory;	/* BufferType: 0 DRAM, 1 L1, 2 SYSTEM_MEMORY, 3 L1_SMALL, 4 TRACE */
	__u8 layout;	/* TensorMemoryLayout */
	__u8 library;	/* which build of the runtime: index into layouts */
	__u32 per_bank; /* TT_ALLOC: bytes that each bank lost, 0 not probed */
};

struct tt_alloc {
	struct tt_head head;
	__u64 buffer;	 /* Buffer* */
	__u64 device;	 /* Device* or MeshDevice* */
	__u64 allocator; /* Allocator* or AllocatorImpl* */
	__u64 size;	 /* as asked for, bytes on each chip */
	__u32 address;	 /* in each bank, bytes */
	__u32 page_size; /* bytes */
};

/*
 * What the reserved size of a sharded buffer is computed from, beside its TT_ALLOC: the beginning of its
 * fields, and its core ranges.
 */
#define TT_SHARDED_FIELDS 512
#define TT_SHARDED_RANGES 512

struct tt_sharded {
	struct tt_head head;
	/* Bytes that were read, of fields and of core ranges. */
	__u32 length;
	__u32 ranges_length;
	__u8 fields[TT_SHARDED_FIELDS];
	__u8 ranges[TT_SHARDED_RANGES];
};

struct tt_object {
	struct tt_head head;
	__u64 object;
};

/* CoreRange: both ends inclusive, logical coordinates. */
struct tt_range {
	__u64 x0, y0, x1, y1;
};

/*
 * A circular or dataflow buffer was placed. One with more core ranges than a
 * record holds comes in several, one after the other: first counts up to count.
 */
#define TT_CB_RANGES 16
#define TT_CB_RECORDS 64

enum tt_cb_kind {
	TT_CB_CIRCULAR = 0,
	TT_CB_GLOBAL,	/* circular, inside an L1 buffer: takes nothing of its own */
	TT_CB_DATAFLOW, /* Metal 2.0 */
};

struct tt_cb {
	struct tt_head head;
	__u64 program; /* ProgramImpl*, 0 unknown */
	__u64 device;  /* Device* or MeshDevice* */
	__u64 address; /* in L1, bytes */
	__u64 size;    /* bytes on each core */
	__u32 call;    /* counts layouts of a program on this thread */
	__u32 kind;    /* enum tt_cb_kind */
	__u32 first;   /* index of the first range in this record */
	__u32 count;   /* ranges in all */
	__u64 on;      /* Device* or MeshDevice* that the program is laid out on, 0 unknown */
};

struct tt_pair {
	struct tt_head head;
	__u64 owner;
	__u64 member;
};

/*
 * A MeshWorkloadImpl got a ProgramImpl for a range of its mesh's coordinates: a
 * MeshCoordinateRange, which lies at an address, as far as it could be read.
 */
#define TT_MESH_RANGE 256

struct tt_program_added {
	struct tt_head head;
	__u64 workload;
	__u64 program;
	__u64 range;
	__u64 length; /* of bytes */
	__u8 bytes[TT_MESH_RANGE];
};

/* Of a longer text its end is sent. */
#define TT_TEXT 512

struct tt_text {
	struct tt_head head;
	__u64 object;
	__u64 device; /* TT_KERNEL_FILE: what the kernel is read for */
	__u32 length; /* of what is sent, bytes */
	__u32 left;   /* bytes before it that are not sent */
	__u8 text[TT_TEXT];
};

/* The program's kernels were copied into a buffer in DRAM. */
struct tt_copy {
	struct tt_head head;
	__u64 program;
	__u64 buffer;  /* the Buffer* that the thread allocated last */
	__u64 address; /* of the copy */
};

/* What happened to a trace of commands. */
enum tt_trace_step {
	TT_TRACE_BEGUN = 0, /* a command queue begins to record it */
	TT_TRACE_CAPTURED,  /* the command queue has recorded it; number is not known */
	TT_TRACE_REPLAYED,  /* on a command queue */
	TT_TRACE_RELEASED,  /* queue is not known */
};

struct tt_trace {
	struct tt_head head;
	__u64 queue;  /* MeshCommandQueue*, 0 unknown */
	__u32 number; /* of the trace in its process */
	__u32 step;   /* enum tt_trace_step */
};

/* What the runtime's own tracking of allocations under traces does, and what a program says to it. */
enum tt_mark_step {
	TT_MARK_TRACKED = 0,  /* object, of this unique id, is being allocated by the allocator */
	TT_MARK_SCOPE_BEGINS, /* what this thread allocates from these allocators may be overwritten */
	TT_MARK_SCOPE_ENDS,   /* the scope that began last on this thread */
	TT_MARK_ACKNOWLEDGED, /* the Buffer of this unique id may be overwritten */
};

#define TT_MARK_ALLOCATORS 8

struct tt_mark {
	struct tt_head head;
	__u64 object; /* Buffer* */
	__u64 unique; /* the runtime's number of the Buffer, 0 unknown */
	__u64 allocators[TT_MARK_ALLOCATORS];
	__u32 count; /* of allocators, at most as many as are here */
	__u32 step;  /* enum tt_mark_step */
};

/* There was no room. The runtime is about to throw, with this message. */
#define TT_REFUSAL_ARGS 16

struct tt_refusal {
	struct tt_head head;
	__u32 clash;	   /* 1: circular buffers reach into L1 buffers; 0: out of memory */
	__u32 length;	   /* of the format, bytes; 0 unread */
	__u32 text_length; /* of the second argument */
	__u32 unused;
	__u64 args[TT_REFUSAL_ARGS]; /* what its {} stand for, but texts */
	__u8 text[64];
	__u8 format[512];
};

/* Where one build of Python keeps what leads to a thread's frames: offsets in bytes. */
#define TT_PYTHON_THREADS 64
#define TT_PYTHON_FRAMES 64
#define TT_PYTHON_STEPS 96

struct tt_python {
	__u64 runtime; /* address of _PyRuntime in the process */
	__u32 interpreter, threads, next, thread_id, frame;
	__u32 indirect; /* 1: there is a pointer more between thread and frame */
	__u32 code, instruction, back;
	__u32 owner, c_owned; /* frames of this owner are not Python's; owner 0: there are none */
	__u32 identity;	      /* of a code object: what another one at its address has not */
};

struct tt_python_frame {
	__u64 code;	   /* PyCodeObject* */
	__u64 instruction; /* its index, or its address */
	__u64 identity;	   /* of the code object */
};

#define TT_STACK_PIECE 1024
#define TT_STACK_PIECES 12

struct tt_stack {
	struct tt_head head;
	__u64 ip, sp, bp, bx, r12, r13, r14, r15;
	__u32 length; /* of the piece of stack, bytes */
	__u32 frames; /* of Python */
	__u32 cut;    /* 1: there are more */
	__u32 unused;
	struct tt_python_frame python[TT_PYTHON_FRAMES];
	__u8 stack[TT_STACK_PIECE * TT_STACK_PIECES];
};

/* A device that a forked process opened itself. */
struct tt_own_key {
	__u64 device;
	__u64 pid;
};

/* Launches are counted, not sent. */
struct tt_launch_key {
	__u64 object; /* MeshWorkloadImpl*, or ProgramImpl* where a program is launched by itself */
	__u64 pid;
};

struct tt_launch {
	__u64 count;
	__u64 last;   /* CLOCK_MONOTONIC, ns */
	__u64 caller; /* the code address that the first launch was made from */
};

/* What was launched ends; its launches are told with that, as they are not counted any more. */
struct tt_gone {
	struct tt_object object;
	struct tt_launch launches;
};

/*
 * Where one build of the runtime keeps a buffer's fields. All offsets count
 * from the fields' base and have to lie within TT_WINDOW.
 */
#define TT_WINDOW 128
#define TT_LIBRARIES 64
/* BPF programs of points, at most. */
#define TT_POINTS 64

/* The first numbers of points: at_point has the BPF programs of these itself. */
enum tt_often {
	TT_OFTEN_ALLOCATED = 0, /* buffer_allocated */
	TT_OFTEN_FREED,		/* buffer_freed */
	TT_OFTEN_FREED_FIRST,	/* buffer_freed_first */
	TT_OFTEN_LAUNCHED,	/* launched */
};

struct tt_layout {
	__u32 base;	/* from the Buffer* to the base, or to the pointer to it */
	__u32 indirect; /* 1: a pointer to the base is at Buffer* + base */
	__u32 device;
	__u32 size;
	__u32 type;
	__u32 layout;
	__u32 allocator;
	__u32 hooked;
	__u32 address;
	__u32 page_size;
	/*
	 * 1: the cores of a dataflow buffer are those of the allocators that it is marked
	 * in, each of which begins with its CoreRange.
	 */
	__u32 marked;
	__u32 span;	/* bytes from the base up to the end of the last field that the probes read */
	__u32 argument; /* enum tt_argument: which one buffer_allocated finds the Buffer* in */
	/* For TT_ARGUMENT_STORED: in a FreeListOpt, its addresses of blocks, and what it adds to one. */
	__u32 blocks;
	__u32 block_base;
	/* Where the Buffer's unique id is, from the Buffer or, if indirect, from its fields; 0 unknown. */
	__u32 unique;
	/*
	 * 1: user space computes what a buffer takes of each bank. sharded: bytes from the base that this
	 * takes for a sharded one, 0 if that is not computed; ranges: where these have a vector of core
	 * ranges, 0 if there is none.
	 */
	__u32 computed;
	__u32 sharded;
	__u32 ranges;
};

enum tt_argument {
	TT_ARGUMENT_SECOND = 0,
	TT_ARGUMENT_FIRST,
	TT_ARGUMENT_STORED, /* at the address that the second one is */
};

/*
 * All PIDs that a process can have, a byte each, in pages: to look one up costs nothing beside
 * a hash map, and there is always room.
 */
#define TT_PIDS_IN_PAGE 4096
#define TT_PID_PAGES 1024
struct tt_pids {
	__u8 is[TT_PIDS_IN_PAGE];
};

/* Counted per CPU in the kernel, so that a lost event is never silent. */
struct tt_counters {
	__u64 seen[TT_KINDS];	/* probe hits that were meant for an event */
	__u64 lost[TT_KINDS];	/* the ring was full */
	__u64 unread[TT_KINDS]; /* the process's memory could not be read */
	__u64 hooked;		/* allocations taken by a graph-capture hook: nothing was reserved */
	__u64 truncated;	/* circular buffers with more core ranges than are sent */
	__u64 unreserved;	/* allocations without a reservation before them, where it is not computed */
	__u64 clipped;		/* texts of which only the end was sent */
	__u64 uncounted;	/* launches that were not read, or found no room */
};

#endif
