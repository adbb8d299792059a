// SPDX-License-Identifier: Apache-2.0
/* Where a plugin was when a signal of its own making ended the process. The handler writes one
 * record and lets the signal have its way: a core file is as it would be without it. A handler
 * that a plugin installs takes its place. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* How much of the stack is searched for the call that has led out of the plugin. */
#define STACK_MAX 16384

/* What a process was at: its next instruction, and the end of its stack. */
struct at {
	uintptr_t pc, sp;
};

static struct at place_of(const void *context)
{
	const mcontext_t *m = &((const ucontext_t *)context)->uc_mcontext;

#if defined(__x86_64__)
	return (struct at){(uintptr_t)m->gregs[REG_RIP], (uintptr_t)m->gregs[REG_RSP]};
#elif defined(__aarch64__)
	return (struct at){(uintptr_t)m->pc, (uintptr_t)m->sp};
#else
	(void)m;
	return (struct at){0, 0};
#endif
}

/* Reads memory of this process that may not be mapped; how many bytes there were. */
static size_t peek(uintptr_t at, void *to, size_t size)
{
	struct iovec local = {to, size}, remote = {(void *)at, size};
	ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

	return n > 0 ? (size_t)n : 0;
}

static bool is_after_call(uintptr_t at)
{
#if defined(__x86_64__)
	uint8_t b[7];

	if (peek(at - sizeof(b), b, sizeof(b)) != sizeof(b))
		return false;
	/* call rel32; or call by a register or memory, of 2 to 7 bytes. */
	if (b[2] == 0xe8)
		return true;
	for (size_t i = 0; i < 6; i++) {
		if (b[i] == 0xff && (b[i + 1] & 0x38) == 0x10)
			return true;
	}
	return false;
#else
	return at % 4 == 0;
#endif
}

/* OBJECT+OFFSET (FUNCTION+OFFSET), the function where the object exports it. */
static size_t describe(char *text, size_t size, uintptr_t at)
{
	Dl_info i, own;
	int n;

	if (dladdr((void *)at, &i) == 0 || i.dli_fname == NULL) {
		n = snprintf(text, size, "address 0x%lx", (unsigned long)at);
	} else {
		const char *slash = strrchr(i.dli_fname, '/');
		const char *name = slash ? slash + 1 : i.dli_fname;

		/* ld.so knows it by its argv[0], which is a title. */
		if (dladdr((void *)&host, &own) != 0 && own.dli_fbase == i.dli_fbase)
			name = "spankhost";
		n = snprintf(text, size, "%.100s+0x%lx", name,
			     (unsigned long)(at - (uintptr_t)i.dli_fbase));
		if (i.dli_sname != NULL && n > 0 && (size_t)n < size)
			n += snprintf(text + n, size - (size_t)n, " (%.100s+0x%lx)", i.dli_sname,
				      (unsigned long)(at - (uintptr_t)i.dli_saddr));
	}
	return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

static bool is_in(uintptr_t at, const struct plugin *p)
{
	struct link_map *of = NULL, *own = NULL;
	Dl_info i;

	return p != NULL && p->dl != NULL && dlinfo(p->dl, RTLD_DI_LINKMAP, &own) == 0 &&
	       dladdr1((void *)at, &i, (void **)&of, RTLD_DL_LINKMAP) != 0 && of == own;
}

/* The call in the plugin that has led elsewhere, to a library most often: the first return
 * address into it; 0 where there is none. */
static uintptr_t caller_in(const struct plugin *p, uintptr_t sp)
{
	static uintptr_t stack[STACK_MAX / sizeof(uintptr_t)];
	size_t n = peek(sp, stack, sizeof(stack)) / sizeof(stack[0]);

	for (size_t i = 0; i < n; i++) {
		if (stack[i] > 0xffff && is_in(stack[i], p) && is_after_call(stack[i]))
			return stack[i];
	}
	return 0;
}

static void report(struct host *h, int sig, const void *context)
{
	struct at at = place_of(context);
	uint8_t buf[512];
	char text[480];
	struct writer w = wr_init(buf, sizeof(buf));
	const struct plugin *p = h->plugin ? h->plugin : h->closing;
	uintptr_t caller = is_in(at.pc, p) ? 0 : caller_in(p, at.sp);
	size_t n = describe(text, sizeof(text), at.pc);

	if (caller != 0) {
		n += (size_t)snprintf(text + n, sizeof(text) - n, ", called at ");
		if (n < sizeof(text))
			describe(text + n, sizeof(text) - n, caller - 1);
	}
	wr_u32(&w, REC_CRASH);
	wr_u32(&w, h->in_task ? h->rank : NO_RANK);
	wr_u32(&w, (uint32_t)sig);
	wr_str(&w, text, sizeof(text));
	struct iovec iov = {buf, w.len};
	(void)packet_send(h->log, &iov, 1, NULL, 0); /* nothing is left to do about it */
}

/* Has the kernel end the process by the signal all the same. ld.so names places under a lock, which
 * a thread has that is loading or closing a plugin: where that waits for the one that has
 * crashed, neither would go on. Without glibc's timer_create, which may allocate memory. */
static void end_soon(int sig)
{
	struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = sig};
	const struct itimerspec patience = {.it_value = {.tv_sec = 1}};
	sigset_t set;
	int timer;

	if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &ev, &timer) < 0 ||
	    syscall(SYS_timer_settime, timer, 0, &patience, NULL) < 0)
		return;
	sigemptyset(&set);
	sigaddset(&set, sig);
	(void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void caught(int sig, siginfo_t *info, void *context)
{
	int saved = errno;

	end_soon(sig);
	/* One that a plugin has forked has no log. */
	if (host.log >= 0)
		report(&host, sig, context);
	/* By now the disposition is the default. A fault comes again behind the handler;
	 * what a process has sent does not. */
	if (info->si_code <= 0)
		(void)syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), sig);
	errno = saved;
}

void crash_catch(void)
{
	static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
	static uint8_t stack[65536];
	const stack_t own = {.ss_sp = stack, .ss_size = sizeof(stack)};
	struct sigaction sa = {.sa_sigaction = caught,
			       .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND};

	/* For a stack that has no room left. */
	(void)sigaltstack(&own, NULL);
	sigfillset(&sa.sa_mask);
	for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
		(void)sigaction(signals[i], &sa, NULL);
}
