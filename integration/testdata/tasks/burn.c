/* SPDX-License-Identifier: Apache-2.0
 *
 * A load of CPU time alone, and its own word on it:
 *
 *	burn cpu_ms REPORT
 *
 * burns CPU until it has used that much in all, writes what getrusage(2) says then
 * into REPORT, and ends. What comes after its word is in the kernel's figures and not
 * in its own: so it has no libc, a handful of pages, and nothing to give back.
 */
#include <fcntl.h>
#include <linux/mman.h>
#include <linux/resource.h>
#include <linux/time.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "burn: no system calls for this machine"
#endif

/* A word of plain numbers: the tester makes them JSON. */
struct word {
	int64_t user_us, system_us;
};

static long call(long nr, long a, long b, long c, long d, long e, long f)
{
#ifdef __x86_64__
	long ret;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
#else
	register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
			 x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e,
			 x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#endif
}

static int64_t number(const char *digits)
{
	int64_t n = 0;

	while (*digits >= '0' && *digits <= '9')
		n = n * 10 + *digits++ - '0';
	return n;
}

static struct word usage(void)
{
	struct rusage ru;

	call(SYS_getrusage, RUSAGE_SELF, (long)&ru, 0, 0, 0, 0);
	return (struct word){(int64_t)ru.ru_utime.tv_sec * 1000000 + ru.ru_utime.tv_usec,
			     (int64_t)ru.ru_stime.tv_sec * 1000000 + ru.ru_stime.tv_usec};
}

/* Memory that is the file: to say a word then costs no system call. */
static struct word *map(const char *report)
{
	long fd = call(SYS_openat, AT_FDCWD, (long)report, O_RDWR | O_CREAT | O_TRUNC, 0600, 0, 0);

	if (fd < 0 || call(SYS_ftruncate, fd, sizeof(struct word), 0, 0, 0, 0) < 0)
		return NULL;
	long p = call(SYS_mmap, 0, sizeof(struct word), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_POPULATE, fd, 0);

	call(SYS_close, fd, 0, 0, 0, 0, 0);
	return p < 0 ? NULL : (struct word *)p;
}

static int burn(const char *cpu_ms, const char *report)
{
	int64_t until = number(cpu_ms) * 1000;
	struct word *word = map(report);

	if (word == NULL)
		return 1;
	do {
		for (volatile int i = 0; i < 1000; i++)
			;
		*word = usage();
	} while (word->user_us + word->system_us < until);
	return 0;
}

/* The kernel leaves argc and argv on the stack: stack is where it points at entry. */
__attribute__((used)) static void entry(long *stack)
{
	char **argv = (char **)(stack + 1);

	call(SYS_exit_group, stack[0] == 3 ? burn(argv[1], argv[2]) : 2, 0, 0, 0, 0, 0);
	__builtin_unreachable();
}

#ifdef __x86_64__
__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall entry\n");
#else
__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl entry\n");
#endif
