// Package bpf contains the BPF programs and the Go types of their records and maps, both generated from the C files in
// this folder.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64 -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" -type tt_head -type tt_alloc -type tt_sharded -type tt_per_core -type tt_core_address -type tt_cb -type tt_range -type tt_object -type tt_pair -type tt_program_added -type tt_text -type tt_copy -type tt_trace -type tt_trace_step -type tt_mark -type tt_mark_step -type tt_argument -type tt_often -type tt_own_key -type tt_launch_key -type tt_launch -type tt_gone -type tt_pids -type tt_refusal -type tt_type -type tt_python -type tt_python_frame -type tt_stack -type tt_code -type tt_layout -type tt_counters -type tt_kind -type tt_cb_kind -output-stem memtrace Memtrace memtrace.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64 -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" -output-stem watch Watch watch.bpf.c
