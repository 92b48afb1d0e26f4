/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The records, maps and counters that BPF programs and user space share. bpf2go generates the Go types from
 * this file. Comments name the TT-Metal type of an object that an address points to, such as Buffer.
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
	TT_EXEC,	   /* struct tt_object; its object is 0 */
	TT_EXIT,	   /* struct tt_object; its object is the status of wait(2) */
	TT_KERNEL_ADDED,   /* struct tt_pair: a ProgramImpl and its Kernel */
	TT_KERNEL_FILE,	   /* struct tt_text: a Kernel, and the path of one of its binaries */
	TT_KERNEL_COPY,	   /* struct tt_copy */
	TT_PROGRAM_ADDED,  /* struct tt_program_added */
	TT_WORKLOAD_NAMED, /* struct tt_text: a MeshWorkloadImpl, and the name of its operation */
	TT_WORKLOAD_GONE,  /* struct tt_gone: the MeshWorkloadImpl */
	TT_SCRATCHPADS,	   /* struct tt_pair: a ProgramImpl, and the device that it is laid out on */
	TT_REFUSED,	   /* struct tt_refusal */
	TT_STACK,      /* struct tt_stack: of the thread's TT_ALLOC, TT_FREE or TT_REFUSED of the same time */
	TT_HOOKED,     /* struct tt_object: a Buffer that a graph-capture hook handled: nothing is reserved */
	TT_TRACE,      /* struct tt_trace */
	TT_MARK,       /* struct tt_mark */
	TT_UNREAD,     /* struct tt_object: its object is the kind of a record that is missing or incomplete;
			  TT_KINDS: a launch or a ring */
	TT_SHARDED,    /* struct tt_sharded: of the thread's TT_ALLOC of the same time */
	TT_CODE,       /* struct tt_code: of a TT_STACK */
	TT_PER_CORE,   /* struct tt_per_core: of the thread's TT_ALLOC of the same time */
	TT_PERSISTENT, /* struct tt_object: 0 */
	TT_RESIZED,    /* struct tt_object: the allocator, of which a memory changes its size */
	TT_KINDS,
};

/* Larger sizes and addresses are sent as this. Banks are smaller. */
#define TT_U32_MAX 0xffffffffU

struct tt_head {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 pid;  /* the process: its thread group's ID */
	__u32 tid;
	__u8 kind;
	__u8 memory;	/* BufferType: 0 DRAM, 1 L1, 2 SYSTEM_MEMORY, 3 L1_SMALL, 4 TRACE */
	__u8 layout;	/* TensorMemoryLayout */
	__u8 library;	/* which build of the runtime: index into layouts */
	__u32 per_bank; /* TT_ALLOC: bytes taken from each bank; 0: not probed */
};

struct tt_alloc {
	struct tt_head head;
	__u64 buffer;	 /* Buffer* */
	__u64 device;	 /* Device* or MeshDevice* */
	__u64 allocator; /* Allocator* or AllocatorImpl* */
	__u64 size;	 /* requested bytes on each chip */
	__u32 address;	 /* in each bank, bytes */
	__u32 page_size; /* bytes */
};

/*
 * The input for computing the reserved size of a sharded buffer: the beginning of its fields, and its core
 * ranges. It precedes the buffer's TT_ALLOC.
 */
#define TT_SHARDED_FIELDS 512
#define TT_SHARDED_RANGES 512

struct tt_sharded {
	struct tt_head head;
	/* Bytes that were read into fields and ranges; 0: unreadable or too long. */
	__u32 length;
	__u32 ranges_length;
	__u8 fields[TT_SHARDED_FIELDS];
	__u8 ranges[TT_SHARDED_RANGES];
};

/* Where a Buffer lies that has an address on each core. It precedes the buffer's TT_ALLOC. */
#define TT_PER_CORE_CORES 256

struct tt_core_address {
	__u16 x, y; /* logical coordinates */
	__u32 address;
};

struct tt_per_core {
	struct tt_head head;
	__u32 count; /* of cores that were read */
	__u32 total; /* of cores that it has; more than count: the others could not be read */
	struct tt_core_address cores[TT_PER_CORE_CORES];
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
 * A circular or dataflow buffer was placed. If it has more than TT_CB_RANGES core ranges, several records
 * follow each other, each with up to TT_CB_RANGES of them.
 */
#define TT_CB_RANGES 16
#define TT_CB_RECORDS 64

enum tt_cb_kind {
	TT_CB_CIRCULAR = 0,
	TT_CB_GLOBAL,	/* circular, inside an L1 buffer: uses no additional L1 */
	TT_CB_DATAFLOW, /* Metal 2.0 */
};

struct tt_cb {
	struct tt_head head;
	__u64 program; /* ProgramImpl*, 0 unknown */
	__u64 device;  /* Device* or MeshDevice* */
	__u64 address; /* in L1, bytes */
	__u64 size;    /* bytes on each core */
	__u32 call;    /* number of the program layout on this thread; its buffers have the same number */
	__u32 kind;    /* enum tt_cb_kind */
	__u32 first;   /* index of this record's first range */
	__u32 count;   /* ranges in all records */
	__u64 on;      /* Device* or MeshDevice* that the program is laid out on, 0 unknown */
};

struct tt_pair {
	struct tt_head head;
	__u64 owner;
	__u64 member;
};

/*
 * A ProgramImpl was added to a MeshWorkloadImpl, for a range of its mesh's coordinates. bytes are the
 * MeshCoordinateRange at address range, those that could be read.
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

/* Only the end of a longer text is sent. */
#define TT_TEXT 512

struct tt_text {
	struct tt_head head;
	__u64 object;
	__u64 device; /* TT_KERNEL_FILE: the device that the kernel is read for */
	__u32 length; /* bytes of text */
	__u32 left;   /* bytes of the text's beginning that are not sent */
	__u8 text[TT_TEXT];
};

/* A program's kernels were copied into a buffer in DRAM. */
struct tt_copy {
	struct tt_head head;
	__u64 program;
	__u64 buffer;  /* the Buffer* that the thread allocated last */
	__u64 address; /* of the copy, bytes */
};

/* What happened to a trace of commands. */
enum tt_trace_step {
	TT_TRACE_BEGUN = 0, /* a command queue begins to record it */
	TT_TRACE_CAPTURED,  /* the command queue has recorded it; number is unknown */
	TT_TRACE_REPLAYED,  /* a command queue replays it */
	TT_TRACE_RELEASED,  /* queue is unknown */
};

struct tt_trace {
	struct tt_head head;
	__u64 queue;  /* MeshCommandQueue*, 0 unknown */
	__u32 number; /* of the trace in its process */
	__u32 step;   /* enum tt_trace_step */
};

/*
 * Calls of the runtime's own tracking of buffers that a replay of a trace can overwrite. A program tells the
 * runtime which of its buffers may be.
 */
enum tt_mark_step {
	TT_MARK_TRACKED = 0,  /* the allocator allocates object, which has this unique ID */
	TT_MARK_SCOPE_BEGINS, /* what this thread allocates from these allocators may be overwritten */
	TT_MARK_SCOPE_ENDS,   /* the scope that began last on this thread ends */
	TT_MARK_ACKNOWLEDGED, /* the Buffer with this unique ID may be overwritten */
};

#define TT_MARK_ALLOCATORS 8

struct tt_mark {
	struct tt_head head;
	__u64 object; /* Buffer* */
	__u64 unique; /* the runtime's unique ID of the Buffer, 0 unknown */
	__u64 allocators[TT_MARK_ALLOCATORS];
	__u32 count; /* of allocators; those beyond TT_MARK_ALLOCATORS are not sent */
	__u32 step;  /* enum tt_mark_step */
};

/* What an argument of a function that throws is. A cookie has the types of all and, behind them, which are
 * texts. */
enum tt_type {
	TT_TYPE_OTHER, /* not shown, or there is none */
	TT_TYPE_U64,
	TT_TYPE_U32,
	TT_TYPE_TEXT, /* std::string or std::string_view */
};

#define TT_TYPE_BITS 2

/* An allocation or a program found no room. The runtime is about to throw an exception with this message. */
#define TT_REFUSAL_ARGS 16
#define TT_REFUSAL_TEXTS 4
#define TT_REFUSAL_TEXT 512

struct tt_refusal {
	struct tt_head head;
	__u64 program; /* that the thread placed last; 0: none */
	__u64 types;   /* enum tt_type of each argument, the first in the lowest TT_TYPE_BITS; then texts, 4
			  bits each */
	__u32 length;  /* bytes of format; 0: unread */
	__u32 lengths[TT_REFUSAL_TEXTS];
	__u32 unused;
	__u64 args[TT_REFUSAL_ARGS];		       /* the first 8 bytes of each argument of the format */
	__u8 text[TT_REFUSAL_TEXTS * TT_REFUSAL_TEXT]; /* the beginning of each argument that is a text */
	__u8 format[512];
};

/* Where one build of Python keeps a thread's frames: offsets in bytes. */
#define TT_PYTHON_THREADS 64
#define TT_PYTHON_FRAMES 64
#define TT_PYTHON_STEPS 96

struct tt_python {
	__u64 runtime; /* address of _PyRuntime in the process */
	__u32 interpreter, threads, next, thread_id, frame;
	__u32 indirect; /* 1: a further pointer leads from the thread to the frame */
	__u32 code, instruction, back;
	__u32 owner, c_owned; /* frames with owner c_owned are C's; owner 0: none is C's */
	__u32 identity;	      /* in a code object: a field that differs in another one at the same address */
	__u32 filename, name, first_line, line_table; /* fields of a code object */
	__u32 ascii, compact; /* where the characters of a str begin, if they are all ASCII or not */
	__u64 number;	      /* differs for each process that user space adds */
	__u64 lasts;	      /* how long a code object's names are sure, ns; 0: as long as its identity */
};

struct tt_python_frame {
	__u64 code;	   /* PyCodeObject* */
	__u64 instruction; /* its index or its address, which depends on the build */
	__u64 identity;	   /* the code object's */
};

/*
 * A code object, read at the first event that has it on its stack, and again when its names are not sure any
 * more. Its process may end before user space reads the record. The record can follow that TT_STACK, but
 * precedes the TT_ALLOC or TT_REFUSED.
 */
#define TT_CODE_NAME 512
#define TT_CODE_FILE 1024
#define TT_CODE_LINES 8192

struct tt_code_text {
	__u32 length; /* bytes */
	__u32 kind;   /* bytes of a character */
};

struct tt_code {
	struct tt_head head;
	__u64 code;	/* PyCodeObject* */
	__u64 identity; /* the code object's */
	struct tt_code_text name;
	struct tt_code_text file;
	__u32 first_line;
	__u32 lines_length; /* bytes */
	__u32 whole;	    /* 1: nothing is missing in the texts and the line table */
	__u32 unused;
	__u8 name_text[TT_CODE_NAME];
	__u8 file_text[TT_CODE_FILE];
	__u8 lines[TT_CODE_LINES];
};

/* The code objects that were sent: the value is when, CLOCK_MONOTONIC, ns. */
struct tt_code_key {
	__u64 process; /* tt_python.number */
	__u64 code;
	__u64 identity;
};

#define TT_STACK_PIECE 1024
#define TT_STACK_PIECES 12

struct tt_stack {
	struct tt_head head;
	__u64 ip, sp, bp, bx, r12, r13, r14, r15;
	__u32 length; /* bytes of stack, from sp on */
	__u32 frames; /* of python */
	__u32 cut;    /* 1: there are more Python frames, or they could not be read */
	__u32 unused;
	struct tt_python_frame python[TT_PYTHON_FRAMES];
	__u8 stack[TT_STACK_PIECE * TT_STACK_PIECES];
};

/* A device that a forked process opened itself. */
struct tt_own_key {
	__u64 device;
	__u64 pid;
};

/* Launches are counted in a map, not sent. */
struct tt_launch_key {
	__u64 object; /* MeshWorkloadImpl*; ProgramImpl* if a program is launched without a workload */
	__u64 pid;
};

struct tt_launch {
	__u64 count;
	__u64 last;   /* the last one: CLOCK_MONOTONIC, ns */
	__u64 caller; /* return address of the first one */
};

/* A program or workload is being destroyed. The record has its launches, which the map then drops. */
struct tt_gone {
	struct tt_object object;
	struct tt_launch launches;
};

/*
 * Where one build of the runtime keeps a buffer's fields. All offsets count from the fields' base and are
 * less than TT_WINDOW, except for those that say otherwise.
 */
#define TT_WINDOW 128
#define TT_LIBRARIES 64
/* The most BPF programs of points. */
#define TT_POINTS 64

/* The numbers of the points that are hit most often. at_point handles them itself, without a tail call. */
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
	 * 1: the cores of a dataflow buffer are those of the allocators on which mark_address is called. Each
	 * of these begins with its CoreRange.
	 */
	__u32 marked;
	__u32 span;	/* bytes from the base up to the end of the last field that the probes read */
	__u32 argument; /* enum tt_argument: which argument of buffer_allocated has the Buffer* */
	/*
	 * For TT_ARGUMENT_STORED, offsets in a FreeListOpt: of the pointer to its blocks' addresses, and of
	 * the value that it adds to an address.
	 */
	__u32 blocks;
	__u32 block_base;
	/* Offset of the Buffer's unique ID, from the Buffer or, if indirect, from its fields; 0 unknown. */
	__u32 unique;
	__u32 computed; /* 1: user space computes a buffer's reserved size in each bank */
	/*
	 * Bytes from the base that computing it needs for a sharded buffer; 0: it is not computed for these.
	 */
	__u32 sharded;
	__u32 ranges; /* offset of a vector of core ranges among these bytes; 0: there is none */
	/*
	 * Offset of the byte that is 1 if a buffer has an address on each core; 0: none has. cores is the
	 * offset of the std::unordered_map from cores to addresses.
	 */
	__u32 per_core;
	__u32 cores;
};

enum tt_argument {
	TT_ARGUMENT_SECOND = 0,
	TT_ARGUMENT_FIRST,
	TT_ARGUMENT_STORED, /* the second argument is the address of a Buffer* */
};

/*
 * A byte for each possible PID, in pages. A lookup is much cheaper than in a hash map, and there is always
 * room.
 */
#define TT_PIDS_IN_PAGE 4096
#define TT_PID_PAGES 1024
struct tt_pids {
	__u8 is[TT_PIDS_IN_PAGE];
};

/* Counters of each CPU, so that no loss is silent. */
struct tt_counters {
	__u64 seen[TT_KINDS];	/* probe hits that had a record to send */
	__u64 lost[TT_KINDS];	/* of these: the ring was full */
	__u64 unread[TT_KINDS]; /* of these: the process's memory could not be read */
	__u64 hooked;		/* allocations that a graph-capture hook handled: nothing is reserved */
	__u64 truncated;	/* circular buffers with more core ranges than are sent */
	__u64 unreserved; /* allocations whose reserved size was neither probed before nor is computed */
	__u64 clipped;	  /* texts of which only the end was sent */
	__u64 uncounted;  /* launches that could not be read, or found the map full */
};

#endif
