/* SPDX-License-Identifier: Apache-2.0
 *
 * What rude.so can do to the process that calls it. kill(-1, SIGKILL) is not
 * among it: root's leaves no process to test.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <linux/seccomp.h>

/* Whether it works is not what is tested. */
#pragma GCC diagnostic ignored "-Wunused-result"

/* Of spank_option_register, in writable memory. */
static char option_name[] = "rudeness", option_usage[] = "how rude to be";
static struct spank_option option = {option_name, NULL, option_usage, 0, 0, NULL};

/* How it ends its process. */

static void write_nowhere(int arg)
{
	volatile int *volatile nowhere = NULL;

	*nowhere = arg;
}

static int fill_stack(volatile int *deeper)
{
	volatile int here[16384] = {*deeper};

	return here[0] ? fill_stack(here) + here[0] : 0;
}

static void overflow(int arg)
{
	volatile int deeper = arg;

	fill_stack(&deeper);
}

static void send_self(int sig)
{
	if (sig == SIGABRT)
		abort();
	raise(sig);
}

static void end_thread(int arg)
{
	(void)arg;
	pthread_exit(NULL);
}

static void run_program(int arg)
{
	(void)arg;
	execl("/bin/true", "true", (char *)NULL);
}

/* The next system call but read, write and exit kills. */
static void seccomp(int mode)
{
	prctl(PR_SET_SECCOMP, mode);
}

/* How it does not come back. */

static void set_mask(int block)
{
	sigset_t all, none;

	sigfillset(&all);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, block ? &all : &none, NULL);
}

static void late(int microseconds)
{
	usleep(microseconds);
}

static void hang(int arg)
{
	set_mask(arg);
	for (;;)
		pause();
}

static void spin(int arg)
{
	set_mask(arg);
	for (volatile unsigned long n = 0;; n++)
		;
}

/* What it does to descriptors. */

static void close_from(int first)
{
	close_range(first, ~0U, 0);
}

static void close_std(int last)
{
	close_range(0, last, 0);
}

/* Each number is open, and is another file. */
static void swap_fds(int first)
{
	int fd = open("/dev/null", O_RDWR);

	for (int i = first; i < 32; i++)
		if (i != fd && fcntl(i, F_GETFD) >= 0)
			dup2(fd, i);
}

/* The root of the file system, at numbers low and high, to stay open over exec. */
static void leave_open(int high)
{
	int fd = open("/", O_RDONLY | O_DIRECTORY);

	dup(fd);
	dup2(fd, high);
}

/* What it does to signals and timers. */

static void on_signal(int sig)
{
	(void)sig;
}

static void ignore(int sig)
{
	signal(sig, SIG_IGN);
}

static void no_zombies(int flags)
{
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = flags};

	sigaction(SIGCHLD, &sa, NULL);
}

static void handle_all(int last)
{
	for (int sig = 1; sig <= last; sig++)
		signal(sig, on_signal);
}

static void set_alarm(int us)
{
	struct itimerval soon = {.it_value = {.tv_usec = us}};

	setitimer(ITIMER_REAL, &soon, NULL);
}

static void alarm_unblocked(int us)
{
	set_mask(0);
	set_alarm(us);
}

static void set_pdeathsig(int sig)
{
	prctl(PR_SET_PDEATHSIG, sig);
}

/* What it does to what else a process has. */

static void go_to_usr(int arg)
{
	(void)arg;
	chdir("/usr");
}

static void set_umask(int mask)
{
	umask((mode_t)mask);
}

static void lead(int session)
{
	if (session)
		setsid();
	else
		setpgid(0, 0);
}

/* Of ~resource the upper limit, too. */
static void limit(int resource)
{
	unsigned int r = (unsigned int)(resource < 0 ? ~resource : resource);
	struct rlimit l;

	getrlimit(r, &l);
	l.rlim_cur = 0;
	l.rlim_max = resource < 0 ? 0 : l.rlim_max;
	setrlimit(r, &l);
}

/* Another user, and does not go back. */
static void seteuid_to(int id)
{
	setegid((gid_t)id);
	seteuid((uid_t)id);
}

static void setuid_to(int id)
{
	seteuid(0);
	setresgid((gid_t)id, (gid_t)id, (gid_t)id);
	setresuid((uid_t)id, (uid_t)id, (uid_t)id);
}

/* What it leaves running. */

static void *sleeper(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void *crasher(void *arg)
{
	struct timespec at;

	/* seteuid(2) of the host's thread interrupts this one. */
	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_nsec += 300000000;
	at.tv_sec += at.tv_nsec / 1000000000;
	at.tv_nsec %= 1000000000;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
	write_nowhere(1);
	return arg;
}

/* Less than none: one that crashes later. */
static void threads(int count)
{
	pthread_t t;

	if (count < 0)
		pthread_create(&t, NULL, crasher, NULL);
	while (count-- > 0)
		pthread_create(&t, NULL, sleeper, NULL);
}

static int pauser(void *arg)
{
	sleeper(arg);
	return 0;
}

/* A thread that the C library does not know of. */
static void raw_thread(int arg)
{
	static long stack[2048];

	(void)arg;
	clone(pauser, stack + sizeof(stack) / sizeof(*stack),
	      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD, NULL);
}

/* A helper; a daemon leaves the session, the process group and its parent. */
static void helper(int daemon)
{
	pid_t pid = fork();

	if (pid > 0) {
		if (daemon)
			waitpid(pid, NULL, 0);
		return;
	}
	if (daemon && (setsid() < 0 || fork() > 0))
		_exit(0);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	execl("/bin/sleep", "sleep", "86399", (char *)NULL);
	_exit(127);
}

/* Returns in both; the second way passes over the handlers of fork. */
static void return_twice(int raw)
{
	if (raw)
		syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	else
		fork();
}

/* The one that was called has gone, and another returns. */
static void become_daemon(int keep)
{
	daemon(keep, keep);
}

/* Whom it hits. */

static void reap(int options)
{
	while (waitpid(-1, NULL, options) > 0)
		;
}

static void kill_group(int sig)
{
	kill(0, sig);
}

/* What it writes over. */

static void scribble(char *s)
{
	memset(s, '=', strlen(s));
}

static void scribble_args(int ac, char **av)
{
	for (int i = 0; i < ac; i++) {
		scribble(av[i]);
		av[i] = NULL;
	}
}

static void scribble_env(spank_t sp)
{
	char **env = NULL;

	if (spank_get_item(sp, S_JOB_ENV, &env) != ESPANK_SUCCESS || env == NULL)
		return;
	for (; *env != NULL; env++) {
		if (strncmp(*env, "SCRIBBLE=", 9) != 0)
			continue;
		scribble(*env);
		*env = NULL;
		break;
	}
}

static void scribble_option(int arg)
{
	scribble(option_name);
	scribble(option_usage);
	memset(&option, arg, sizeof(option));
}

static const struct {
	const char *name;
	void (*commit)(int);
	int arg;
} misdeeds[] = {
	{"segv", write_nowhere, 1},
	{"overflow", overflow, 1},
	{"abort", send_self, SIGABRT},
	{"kill", send_self, SIGKILL},
	{"stop", send_self, SIGSTOP},
	{"exit", exit, 3},
	{"_exit", _exit, 4},
	{"pthread_exit", end_thread, 0},
	{"exec", run_program, 0},
	{"seccomp", seccomp, SECCOMP_MODE_STRICT},
	{"late", late, 500000},
	{"hang", hang, 0},
	{"hang-blocked", hang, 1},
	{"spin", spin, 0},
	{"spin-blocked", spin, 1},
	{"closefds", close_from, 3},
	{"closeall", close_from, 0},
	{"closestd", close_std, 2},
	{"swapfds", swap_fds, 3},
	{"leave-open", leave_open, 100},
	{"ignore-sigchld", ignore, SIGCHLD},
	{"ignore-sigterm", ignore, SIGTERM},
	{"no-zombies", no_zombies, SA_NOCLDWAIT},
	{"handlers", handle_all, 64},
	{"block", set_mask, 1},
	{"unblock", set_mask, 0},
	{"alarm", set_alarm, 20000},
	{"alarm-unblocked", alarm_unblocked, 20000},
	{"no-pdeathsig", set_pdeathsig, 0},
	{"chdir", go_to_usr, 0},
	{"umask", set_umask, 0},
	{"setpgid", lead, 0},
	{"setsid", lead, 1},
	{"nofile", limit, RLIMIT_NOFILE},
	{"nofile-hard", limit, ~RLIMIT_NOFILE},
	{"core", limit, ~RLIMIT_CORE},
	{"nproc", limit, ~RLIMIT_NPROC},
	{"seteuid", seteuid_to, 65534},
	{"setuid", setuid_to, 65534},
	{"thread", threads, 3},
	{"thread-crash", threads, -1},
	{"thread-raw", raw_thread, 0},
	{"helper", helper, 0},
	{"daemon", helper, 1},
	{"twice", return_twice, 0},
	{"twice-raw", return_twice, 1},
	{"daemon()", become_daemon, 1},
	{"reap", reap, WNOHANG},
	{"reap-all", reap, 0},
	{"term-group", kill_group, SIGTERM},
	{"kill-group", kill_group, SIGKILL},
	{"option", scribble_option, 0},
};

static int misbehave(const char *what, spank_t sp, int ac, char **av)
{
	if (strncmp(what, "rc=", 3) == 0)
		return atoi(what + 3);
	if (strncmp(what, "chroot=", 7) == 0)
		return chroot(what + 7) < 0 || chdir("/") < 0 ? -1 : 0;
	for (size_t i = 0; i < sizeof(misdeeds) / sizeof(misdeeds[0]); i++) {
		if (strcmp(misdeeds[i].name, what) == 0) {
			misdeeds[i].commit(misdeeds[i].arg);
			return 0;
		}
	}
	if (strcmp(what, "args") == 0)
		scribble_args(ac, av);
	else if (strcmp(what, "env") == 0)
		scribble_env(sp);
	else
		return -1;
	return 0;
}
