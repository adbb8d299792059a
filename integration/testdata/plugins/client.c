/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin of both sides, with options. Arguments of its plugstack line:
 *
 *   ctx=N hook=NAME do=WHAT   misbehave there: rc=N, segv, abort, exit, hang, stop, daemon, closefds
 *   side=local|remote         offer the option --one on this side only
 *   alike=1                   offer --a-like and --a_like
 *   odd=1                     offer what cannot be one
 *   getopt=1                  append what user_init finds of --both
 *   mark=FILE                 append "CTX HOOK uid" in every hook
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(client, 1)

static const char *mark_path;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
	char line[512];
	va_list ap;

	if (mark_path == NULL)
		return;
	va_start(ap, format);
	int n = vsnprintf(line, sizeof(line) - 1, format, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	int fd = open(mark_path, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0 || write(fd, line, (size_t)n) != n)
		slurm_error("client: cannot write mark %s", mark_path);
	if (fd >= 0)
		close(fd);
}

static int on_option(int val, const char *optarg, int remote)
{
	note("%d option %d %zu %.20s remote=%d", spank_context(), val, optarg ? strlen(optarg) : 0,
	     optarg ? optarg : "NULL", remote);
	if (optarg && strcmp(optarg, "FAIL") == 0)
		return -1;
	if (optarg && strncmp(optarg, remote ? "REMOTE=" : "LOCAL=", remote ? 7 : 6) == 0)
		return atoi(strchr(optarg, '=') + 1);
	return 0;
}

static struct spank_option both = {"both", "value", "offered on both sides", 2, 1, on_option};
static struct spank_option one = {"one", "value", "offered on one side", 1, 2, on_option};
static struct spank_option flag = {"flag", NULL, "takes none", 0, 3, on_option};

/* Names that come to one key in the environment. */
static struct spank_option alike[] = {{"a-like", "value", "written alike", 1, 4, on_option},
				      {"a_like", "value", "written alike", 1, 5, on_option}};

/* What spank_option_register returns for options that are none. */
static void register_odd(spank_t sp)
{
	char name[200];
	struct spank_option odd[] = {
		{"", NULL, "empty", 0, 0, NULL},    {"a b", NULL, "blank", 0, 0, NULL},
		{name, NULL, "long", 0, 0, NULL},   {"both", NULL, "again", 0, 0, NULL},
		{"silent", NULL, NULL, 0, 0, NULL}, {NULL, NULL, "nameless", 0, 0, NULL},
		{"plain", NULL, "fine", 0, 0, NULL}};

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		note("%d register %zu: %d", spank_context(), i, spank_option_register(sp, &odd[i]));
	note("%d register NULL: %d", spank_context(), spank_option_register(sp, NULL));
	note("%d register by no handle: %d", spank_context(), spank_option_register(NULL, &both));
}

static const char *argument(int ac, char **av, const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; i < ac; i++)
		if (strncmp(av[i], name, n) == 0 && av[i][n] == '=')
			return av[i] + n + 1;
	return NULL;
}

static void misbehave(const char *what)
{
	if (strcmp(what, "segv") == 0) {
		raise(SIGSEGV);
	} else if (strcmp(what, "abort") == 0) {
		abort();
	} else if (strcmp(what, "exit") == 0) {
		exit(0);
	} else if (strcmp(what, "hang") == 0) {
		for (;;)
			pause();
	} else if (strcmp(what, "stop") == 0) {
		raise(SIGSTOP);
	} else if (strcmp(what, "closefds") == 0) {
		close_range(3, ~0U, 0);
	} else if (strcmp(what, "daemon") == 0 && fork() == 0) {
		if (fork() > 0)
			_exit(0);
		setsid();
		execl("/bin/sleep", "sleep", "86399", (char *)NULL);
		_exit(127);
	}
}

static int visit(const char *hook, int ac, char **av)
{
	const char *ctx = argument(ac, av, "ctx"), *where = argument(ac, av, "hook"),
		   *what = argument(ac, av, "do");

	mark_path = argument(ac, av, "mark");
	note("%d %s uid=%d,%d", spank_context(), hook, (int)getuid(), (int)geteuid());
	if (ctx == NULL || where == NULL || what == NULL || atoi(ctx) != (int)spank_context() ||
	    strcmp(where, hook) != 0)
		return 0;
	if (strncmp(what, "rc=", 3) == 0)
		return atoi(what + 3);
	misbehave(what);
	return 0;
}

int slurm_spank_init(spank_t sp, int ac, char *av[])
{
	const char *side = argument(ac, av, "side");

	mark_path = argument(ac, av, "mark");
	spank_option_register(sp, &both);
	spank_option_register(sp, &flag);
	for (int i = 0; argument(ac, av, "alike") != NULL && i < 2; i++)
		spank_option_register(sp, &alike[i]);
	if (argument(ac, av, "odd") != NULL)
		register_odd(sp);
	if (side != NULL && (strcmp(side, "remote") == 0) == (spank_remote(sp) == 1))
		spank_option_register(sp, &one);
	if (spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_ALLOCATOR)
		setenv("CLIENT_INIT", "1", 1);
	return visit("init", ac, av);
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char *av[])
{
	spank_job_control_setenv(sp, "CLIENT", "post opt", 1);
	return visit("init_post_opt", ac, av);
}

int slurm_spank_local_user_init(spank_t sp, int ac, char *av[])
{
	char value[64];
	uint32_t job = 0, step = 0;

	spank_get_item(sp, S_JOB_ID, &job);
	spank_get_item(sp, S_JOB_STEPID, &step);
	snprintf(value, sizeof(value), "%u.%u", job, step);
	setenv("CLIENT_LOCAL", value, 1);
	unsetenv("CLIENT_GONE");
	return visit("local_user_init", ac, av);
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		(void)sp;                                                                          \
		return visit(#name, ac, av);                                                       \
	}

int slurm_spank_user_init(spank_t sp, int ac, char *av[])
{
	char *value = NULL;
	spank_err_t got = spank_option_getopt(sp, &both, &value);

	mark_path = argument(ac, av, "mark");
	if (argument(ac, av, "getopt") != NULL)
		note("%d getopt both: %d %.20s", spank_context(), got, value ? value : "NULL");
	return visit("user_init", ac, av);
}

HOOK(exit)
HOOK(job_prolog)
HOOK(job_epilog)
HOOK(slurmd_exit)
