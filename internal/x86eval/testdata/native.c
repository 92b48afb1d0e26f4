// Runs single instructions on the processor. Reads records from the standard
// input, executes the code of each with the registers and memory it gives, and
// writes the record back with what they are afterwards.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct record {
	uint64_t gpr[16];      // 0
	uint64_t flags;        // 128
	uint64_t status;       // 136: signal, if any
	uint64_t vec[16][4];   // 144
	uint8_t mem[256];      // 656
	uint8_t code[16];      // 912
};

#define DATA ((uint8_t *)0x10000000)
#define CODE ((uint8_t *)0x20000000)

struct record *cur;
uint64_t saved_rax;
void *entry = CODE;
void run(void);

#define G(r, n) "mov " #n "(%rax), %" #r "\n"
#define P(r, n) "mov %" #r ", " #n "(%rax)\n"
#define V(i) "vmovdqu 144+32*" #i "(%rax), %ymm" #i "\n"
#define W(i) "vmovdqu %ymm" #i ", 144+32*" #i "(%rax)\n"
#define REGS(f) f(rcx, 8) f(rdx, 16) f(rbx, 24) f(rbp, 40) f(rsi, 48) f(rdi, 56) \
	f(r8, 64) f(r9, 72) f(r10, 80) f(r11, 88) f(r12, 96) f(r13, 104) f(r14, 112) f(r15, 120)
#define VECS(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)

__asm__(
	".text\n.globl run\nrun:\n"
	"push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\nsub $8, %rsp\n"
	"mov cur(%rip), %rax\n"
	VECS(V) REGS(G)
	"pushq 128(%rax)\npopfq\n"
	"mov (%rax), %rax\n"
	"call *entry(%rip)\n"
	"mov %rax, saved_rax(%rip)\n"
	"mov cur(%rip), %rax\n"
	VECS(W) REGS(P)
	"pushfq\npopq 128(%rax)\n"
	"mov saved_rax(%rip), %rcx\nmov %rcx, (%rax)\n"
	"cld\nvzeroupper\n"
	"add $8, %rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
	".section .note.GNU-stack,\"\",@progbits\n.text\n");

static sigjmp_buf back;
static void handler(int sig) { siglongjmp(back, sig); }

int main(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	static char stack[1 << 16];
	stack_t ss = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	struct record r;
	const int sigs[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};

	if (mmap(DATA, 4096, PROT_READ | PROT_WRITE, flags, -1, 0) != DATA)
		return perror("mmap"), 1;
	if (mmap(CODE, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, flags, -1, 0) != CODE)
		return perror("mmap"), 1;
	sigaltstack(&ss, NULL);
	for (unsigned i = 0; i < sizeof sigs / sizeof *sigs; i++)
		sigaction(sigs[i], &sa, NULL);
	while (fread(&r, sizeof r, 1, stdin) == 1) {
		memcpy(DATA, r.mem, sizeof r.mem);
		memset(CODE, 0xc3, 32);
		memcpy(CODE, r.code, sizeof r.code);
		cur = &r;
		int sig = sigsetjmp(back, 1);
		if (sig == 0)
			run();
		r.status = sig;
		memcpy(r.mem, DATA, sizeof r.mem);
		if (fwrite(&r, sizeof r, 1, stdout) != 1)
			return 1;
	}
	return 0;
}
