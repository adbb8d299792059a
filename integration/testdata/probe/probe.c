/* SPDX-License-Identifier: Apache-2.0
 *
 * The recording plugin: in every SPANK callback it writes one JSON line that
 * says who it is (credentials, groups, masks, limits, descriptors) and what
 * every call of the SPANK API answers there. The fields and the order of the
 * calls are the recorded traces', because the calls change state: a
 * later callback sees the PROBE_* variables that an earlier one has set.
 *
 * Compile with -DPROBE_OUT='"/path/of/the/record"'. The file is opened in the
 * first callback and kept, so that task_init can write as the user.
 *
 * Arguments of its plugstack line:
 *
 *   tag=NAME            which of several lines it is
 *   lite                record who it is, and call nothing of the API
 *   fail=CB=RC[@CTX]    return RC from this callback (in this context alone)
 *
 * With -DNO_OPTIONS it offers none. With -DINIT_FAILURE_MODE=N it says what a failure of its init counts as.
 * With -DNO_CRASH it leaves out the calls that end a process of the recorded system.
 *
 * An option whose argument is FAIL has its callback fail, with RFAIL on the
 * remote side alone.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(PNAME, 1)

#ifdef INIT_FAILURE_MODE
/* What a failure of slurm_spank_init counts as (25.05). */
int slurm_spank_init_failure_mode = INIT_FAILURE_MODE;
#endif

extern char **environ;

enum cb {
	CB_INIT,
	CB_INIT_POST_OPT,
	CB_LOCAL_USER_INIT,
	CB_USER_INIT,
	CB_TASK_INIT_PRIVILEGED,
	CB_TASK_INIT,
	CB_TASK_POST_FORK,
	CB_TASK_EXIT,
	CB_EXIT,
	CB_SLURMD_EXIT,
	CB_JOB_PROLOG,
	CB_JOB_EPILOG,
	CB_COUNT,
};

static const char *const cb_name[CB_COUNT] = {
	"init",	      "init_post_opt",	"local_user_init", "user_init", "task_init_privileged",
	"task_init",  "task_post_fork", "task_exit",	   "exit",	"slurmd_exit",
	"job_prolog", "job_epilog",
};

/* Static data lives as long as the process that loaded us: a fork copies it. */
static int count_total, count_cb[CB_COUNT], count_opt_cb, opt_hits;
static int *count_heap;
static pid_t first_pid;
static int out_fd = -1;
static const char *tag = "";
static int lite;

static int opt_cb(int val, const char *optarg, int remote);

#ifdef NO_OPTIONS
#define TABLE unseen_options
#else
#define TABLE spank_options
#endif
struct spank_option TABLE[] = {
	{"ptab", "value", "an option of the table", 1, 41, opt_cb},
	{"pflag", NULL, "a flag of the table", 0, 42, opt_cb},
	{"pnocb", "value", "an option without a callback", 1, 45, NULL},
	SPANK_OPTIONS_TABLE_END,
};

static struct spank_option preg = {"preg", "value", "a registered option", 2, 43, opt_cb};
static struct spank_option pregflag = {"pregflag", NULL, "a registered flag", 0, 44, opt_cb};

/* ---- JSON, as much as is needed ---- */

static void json_string(FILE *f, const char *s)
{
	if (s == NULL) {
		fputs("null", f);
		return;
	}
	fputc('"', f);
	for (; *s != '\0'; s++) {
		unsigned char c = (unsigned char)*s;
		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20 || c >= 0x7f)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

/* A member's name with the comma that belongs before it. */
static void json_key(FILE *f, const char *name, int *n)
{
	if ((*n)++ > 0)
		fputc(',', f);
	json_string(f, name);
	fputc(':', f);
}

static void json_int(FILE *f, const char *name, int *n, long long v)
{
	json_key(f, name, n);
	fprintf(f, "%lld", v);
}

static void json_list(FILE *f, char **list)
{
	fputc('[', f);
	for (int i = 0; list != NULL && list[i] != NULL; i++) {
		if (i > 0)
			fputc(',', f);
		json_string(f, list[i]);
	}
	fputc(']', f);
}

/* ---- who we are ---- */

/* Reads a small file of /proc; NULs become blanks. */
static void slurp(const char *path, char *buf, size_t size)
{
	buf[0] = '\0';
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t n = read(fd, buf, size - 1);
	close(fd);
	if (n < 0)
		n = 0;
	while (n > 0 && (buf[n - 1] == '\n' || buf[n - 1] == '\0'))
		n--;
	buf[n] = '\0';
	for (ssize_t i = 0; i < n; i++)
		if (buf[i] == '\0')
			buf[i] = ' ';
}

static void put_counters(FILE *f)
{
	int n = 0;
	fputc('{', f);
	json_int(f, "total", &n, count_total);
	json_int(f, "heap", &n, *count_heap);
	json_int(f, "first_pid", &n, first_pid);
	json_int(f, "opt_hits", &n, opt_hits);
	for (int i = 0; i < CB_COUNT; i++)
		json_int(f, cb_name[i], &n, count_cb[i]);
	json_int(f, "opt_cb", &n, count_opt_cb);
	fputc('}', f);
}

static void put_ids(FILE *f, int *n)
{
	uid_t r, e, s;
	gid_t rg, eg, sg;
	gid_t groups[256];

	json_int(f, "pid", n, getpid());
	json_int(f, "ppid", n, getppid());
	json_int(f, "tid", n, syscall(SYS_gettid));
	json_int(f, "pgid", n, getpgid(0));
	json_int(f, "sid", n, getsid(0));
	getresuid(&r, &e, &s);
	getresgid(&rg, &eg, &sg);
	json_key(f, "resuid", n);
	fprintf(f, "[%u,%u,%u]", r, e, s);
	json_key(f, "resgid", n);
	fprintf(f, "[%u,%u,%u]", rg, eg, sg);
	json_key(f, "groups", n);
	fputc('[', f);
	int k = getgroups(256, groups);
	for (int i = 0; i < k; i++)
		fprintf(f, "%s%u", i > 0 ? "," : "", groups[i]);
	fputc(']', f);
}

static void put_status(FILE *f)
{
	static const char *const wanted[] = {"Name",
					     "Umask",
					     "State",
					     "Tgid",
					     "PPid",
					     "TracerPid",
					     "Uid",
					     "Gid",
					     "Groups",
					     "Threads",
					     "SigPnd",
					     "ShdPnd",
					     "SigBlk",
					     "SigIgn",
					     "SigCgt",
					     "CapInh",
					     "CapPrm",
					     "CapEff",
					     "CapBnd",
					     "CapAmb",
					     "NoNewPrivs",
					     "Seccomp",
					     "Cpus_allowed_list"};
	char buf[8192], *save = NULL;
	int n = 0;

	slurp("/proc/self/status", buf, sizeof(buf));
	fputc('{', f);
	for (char *line = strtok_r(buf, "\n", &save); line != NULL;
	     line = strtok_r(NULL, "\n", &save)) {
		char *value = strchr(line, ':');
		if (value == NULL)
			continue;
		*value++ = '\0';
		while (*value == '\t' || *value == ' ')
			value++;
		for (char *p = value; *p != '\0'; p++)
			if (*p == '\t')
				*p = ' ';
		for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
			if (strcmp(line, wanted[i]) == 0) {
				json_key(f, line, &n);
				json_string(f, value);
			}
	}
	fputc('}', f);
}

static void put_rlimit(FILE *f)
{
	static const struct {
		const char *name;
		int which;
	} limits[] = {{"nofile", RLIMIT_NOFILE},   {"core", RLIMIT_CORE},   {"stack", RLIMIT_STACK},
		      {"memlock", RLIMIT_MEMLOCK}, {"nproc", RLIMIT_NPROC}, {"as", RLIMIT_AS}};
	int n = 0;

	fputc('{', f);
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		struct rlimit l;
		getrlimit(limits[i].which, &l);
		json_key(f, limits[i].name, &n);
		fprintf(f, "\"%lld/%lld\"", (long long)l.rlim_cur, (long long)l.rlim_max);
	}
	fputc('}', f);
}

/* The open descriptors, " [CX]" where exec closes them; our own is left out. */
static void put_fds(FILE *f)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	fputc('{', f);
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
		char link[64], target[4096], text[4200];
		int fd = atoi(e->d_name);
		if (e->d_name[0] == '.' || fd == dirfd(d) || fd == out_fd)
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		ssize_t k = readlink(link, target, sizeof(target) - 1);
		if (k < 0)
			continue;
		target[k] = '\0';
		snprintf(text, sizeof(text), "%s%s", target,
			 (fcntl(fd, F_GETFD) & FD_CLOEXEC) ? " [CX]" : "");
		json_key(f, e->d_name, &n);
		json_string(f, text);
	}
	if (d != NULL)
		closedir(d);
	fputc('}', f);
}

/* ---- spank_get_item ---- */

static void put_item(FILE *f, int *n, const char *name, spank_err_t rc, const char *fmt, ...)
{
	json_key(f, name, n);
	fprintf(f, "{\"rc\":%d", (int)rc);
	if (rc == ESPANK_SUCCESS) {
		char value[8192];
		va_list ap;
		va_start(ap, fmt);
		vsnprintf(value, sizeof(value), fmt, ap);
		va_end(ap);
		fputs(",\"v\":", f);
		json_string(f, value);
	}
	fputc('}', f);
}

#define ITEM(type, item, fmt)                                                                      \
	do {                                                                                       \
		type v_ = 0;                                                                       \
		spank_err_t rc_ = spank_get_item(sp, item, &v_);                                   \
		put_item(f, &n, #item, rc_, fmt, v_);                                              \
	} while (0)

static void put_argv_item(FILE *f, int *n, spank_t sp)
{
	int ac = 0;
	char **av = NULL, text[4096] = "";
	spank_err_t rc = spank_get_item(sp, S_JOB_ARGV, &ac, &av);

	for (int i = 0; rc == ESPANK_SUCCESS && i < ac; i++) {
		size_t used = strlen(text);
		snprintf(text + used, sizeof(text) - used, " [%s]", av[i]);
	}
	put_item(f, n, "S_JOB_ARGV", rc, "argc=%d%s", ac, text);
}

static void put_env_item(FILE *f, int *n, spank_t sp)
{
	char **env = NULL;
	int count = 0;
	spank_err_t rc = spank_get_item(sp, S_JOB_ENV, &env);

	while (env != NULL && env[count] != NULL)
		count++;
	put_item(f, n, "S_JOB_ENV", rc, "%s n=%d same_as_environ=%d", env != NULL ? "ptr" : "NULL",
		 count, env != NULL && env == environ);
}

static void put_gids_item(FILE *f, int *n, spank_t sp)
{
	gid_t *gids = NULL;
	int count = 0;
	char text[4096] = "";
	spank_err_t rc = spank_get_item(sp, S_JOB_SUPPLEMENTARY_GIDS, &gids, &count);

	for (int i = 0; rc == ESPANK_SUCCESS && i < count; i++) {
		size_t used = strlen(text);
		snprintf(text + used, sizeof(text) - used, " %u", gids[i]);
	}
	put_item(f, n, "S_JOB_SUPPLEMENTARY_GIDS", rc, "n=%d%s", count, text);
}

static void put_pid_items(FILE *f, int *n, spank_t sp)
{
	pid_t task_pid = 0;
	if (spank_get_item(sp, S_TASK_PID, &task_pid) != ESPANK_SUCCESS)
		task_pid = 4194303;
	const struct {
		const char *name;
		spank_item_t item;
		pid_t pid;
	} rows[] = {
		{"S_JOB_PID_TO_GLOBAL_ID(self)", S_JOB_PID_TO_GLOBAL_ID, getpid()},
		{"S_JOB_PID_TO_GLOBAL_ID(taskpid)", S_JOB_PID_TO_GLOBAL_ID, task_pid},
		{"S_JOB_PID_TO_GLOBAL_ID(1)", S_JOB_PID_TO_GLOBAL_ID, 1},
		{"S_JOB_PID_TO_LOCAL_ID(self)", S_JOB_PID_TO_LOCAL_ID, getpid()},
		{"S_JOB_PID_TO_LOCAL_ID(taskpid)", S_JOB_PID_TO_LOCAL_ID, task_pid},
		{"S_JOB_PID_TO_LOCAL_ID(1)", S_JOB_PID_TO_LOCAL_ID, 1},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint32_t id = 0;
		spank_err_t rc = spank_get_item(sp, rows[i].item, rows[i].pid, &id);
		put_item(f, n, rows[i].name, rc, "%u", id);
	}
}

static void put_id_items(FILE *f, int *n, spank_t sp)
{
	static const uint32_t ids[] = {0, 1, 2, 99};
	uint32_t tasks = 0;
#ifdef NO_CRASH
	/* The recorded system reads one element too far. */
	(void)spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks);
#endif
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		char name[64];
		uint32_t id = 0;
		if (tasks > 0 && ids[i] == tasks)
			continue;
		spank_err_t rc = spank_get_item(sp, S_JOB_LOCAL_TO_GLOBAL_ID, ids[i], &id);
		snprintf(name, sizeof(name), "S_JOB_LOCAL_TO_GLOBAL_ID(%u)", ids[i]);
		put_item(f, n, name, rc, "%u", id);
		id = 0;
		rc = spank_get_item(sp, S_JOB_GLOBAL_TO_LOCAL_ID, ids[i], &id);
		snprintf(name, sizeof(name), "S_JOB_GLOBAL_TO_LOCAL_ID(%u)", ids[i]);
		put_item(f, n, name, rc, "%u", id);
	}
}

static void put_items(FILE *f, spank_t sp)
{
	int n = 0;
	uid_t uid = 0;

	fputc('{', f);
	ITEM(uid_t, S_JOB_UID, "%u");
	ITEM(gid_t, S_JOB_GID, "%u");
	ITEM(uint32_t, S_JOB_ID, "%u");
	ITEM(uint32_t, S_JOB_STEPID, "%u");
	ITEM(uint32_t, S_JOB_NNODES, "%u");
	ITEM(uint32_t, S_JOB_NODEID, "%u");
	ITEM(uint32_t, S_JOB_LOCAL_TASK_COUNT, "%u");
	ITEM(uint32_t, S_JOB_TOTAL_TASK_COUNT, "%u");
	ITEM(uint16_t, S_JOB_NCPUS, "%u");
	put_argv_item(f, &n, sp);
	put_env_item(f, &n, sp);
	ITEM(int, S_TASK_ID, "%d");
	ITEM(uint32_t, S_TASK_GLOBAL_ID, "%u");
	ITEM(int, S_TASK_EXIT_STATUS, "%d");
	ITEM(pid_t, S_TASK_PID, "%d");
	put_pid_items(f, &n, sp);
	put_id_items(f, &n, sp);
	put_gids_item(f, &n, sp);
	ITEM(char *, S_SLURM_VERSION, "%s");
	ITEM(char *, S_SLURM_VERSION_MAJOR, "%s");
	ITEM(char *, S_SLURM_VERSION_MINOR, "%s");
	ITEM(char *, S_SLURM_VERSION_MICRO, "%s");
	ITEM(uint32_t, S_STEP_CPUS_PER_TASK, "%u");
	ITEM(char *, S_JOB_ALLOC_CORES, "%s");
	ITEM(unsigned long, S_JOB_ALLOC_MEM, "%lu");
	ITEM(char *, S_STEP_ALLOC_CORES, "%s");
	ITEM(unsigned long, S_STEP_ALLOC_MEM, "%lu");
	ITEM(uint32_t, S_SLURM_RESTART_COUNT, "%u");
	ITEM(uint32_t, S_JOB_ARRAY_ID, "%u");
	ITEM(uint32_t, S_JOB_ARRAY_TASK_ID, "%u");
	put_item(f, &n, "BOGUS_999", spank_get_item(sp, (spank_item_t)999, &uid), "%s", "");
	put_item(f, &n, "NULLHANDLE_S_JOB_UID", spank_get_item(NULL, S_JOB_UID, &uid), "%s", "");
	fputc('}', f);
}

/* ---- spank_getenv and its kin ---- */

static sigjmp_buf crash_jump;

static void on_crash(int sig)
{
	siglongjmp(crash_jump, sig);
}

/* A call that crashed the library of the recorded system: -9999 where it does. */
static int getenv_into_null(spank_t sp)
{
	struct sigaction act = {.sa_handler = on_crash}, old;
	int rc = -9999;

	sigaction(SIGSEGV, &act, &old);
	if (sigsetjmp(crash_jump, 1) == 0)
		rc = (int)spank_getenv(sp, "PATH", NULL, 64);
	sigaction(SIGSEGV, &old, NULL);
	return rc;
}

typedef spank_err_t (*getter)(spank_t, const char *, char *, int);

static void put_get(FILE *f, int *n, const char *label, getter get, spank_t sp, const char *var,
		    int len)
{
	char buf[4096] = "UNTOUCHED";
	spank_err_t rc = get(sp, var, buf, len);
	json_key(f, label, n);
	fprintf(f, "{\"rc\":%d,\"buf\":", (int)rc);
	json_string(f, buf);
	fputc('}', f);
}

static void put_env(FILE *f, spank_t sp, enum cb cb)
{
	char name[128], value[64];
	int n = 0;

	fputc('{', f);
	put_get(f, &n, "getenv(PATH)", spank_getenv, sp, "PATH", 4096);
	put_get(f, &n, "getenv(HOME)", spank_getenv, sp, "HOME", 4096);
	put_get(f, &n, "getenv(MISSING)", spank_getenv, sp, "PROBE_NO_SUCH_VARIABLE", 4096);
	put_get(f, &n, "getenv(PATH,len=4)", spank_getenv, sp, "PATH", 4);
	put_get(f, &n, "getenv(PATH,len=0)", spank_getenv, sp, "PATH", 0);
	put_get(f, &n, "getenv(PATH,len=-1)", spank_getenv, sp, "PATH", -1);
	json_int(f, "getenv(PATH,NULLbuf)", &n, getenv_into_null(sp));
	put_get(f, &n, "getenv(MISSING,len=0)", spank_getenv, sp, "PROBE_NO_SUCH_VARIABLE", 0);
	put_get(f, &n, "getenv(SLURM_JOB_ID)", spank_getenv, sp, "SLURM_JOB_ID", 4096);
	put_get(f, &n, "getenv(SLURM_PROCID)", spank_getenv, sp, "SLURM_PROCID", 4096);
	json_int(f, "setenv(NEW,ow=0)", &n, spank_setenv(sp, "PROBE_NEW", "n1", 0));
	put_get(f, &n, "getenv(NEW)", spank_getenv, sp, "PROBE_NEW", 4096);
	json_int(f, "setenv(existing,ow=0)", &n, spank_setenv(sp, "PROBE_NEW", "n2", 0));
	put_get(f, &n, "getenv(NEW)#2", spank_getenv, sp, "PROBE_NEW", 4096);
	json_int(f, "setenv(existing,ow=1)", &n, spank_setenv(sp, "PROBE_NEW", "n3", 1));
	put_get(f, &n, "getenv(NEW)#3", spank_getenv, sp, "PROBE_NEW", 4096);
	json_int(f, "setenv(EMPTYVAL)", &n, spank_setenv(sp, "PROBE_EMPTY", "", 1));
	put_get(f, &n, "getenv(EMPTY)", spank_getenv, sp, "PROBE_EMPTY", 4096);
	json_int(f, "setenv(NULLval)", &n, spank_setenv(sp, "PROBE_NULL", NULL, 1));
	json_int(f, "setenv(NULLvar)", &n, spank_setenv(sp, NULL, "x", 1));
	json_int(f, "unsetenv(existing)", &n, spank_unsetenv(sp, "PROBE_NEW"));
	put_get(f, &n, "getenv(NEW)#4", spank_getenv, sp, "PROBE_NEW", 4096);
	json_int(f, "unsetenv(MISSING)", &n, spank_unsetenv(sp, "PROBE_NO_SUCH_VARIABLE"));
	json_int(f, "unsetenv(NULL)", &n, spank_unsetenv(sp, NULL));
	snprintf(name, sizeof(name), "PROBE_SET_%s_%s", tag, cb_name[cb]);
	snprintf(value, sizeof(value), "pid%d", getpid());
	json_int(f, "setenv(PROBE_SET_cb)", &n, spank_setenv(sp, name, value, 1));
	json_int(f, "setenv(PROBE_LAST)", &n, spank_setenv(sp, "PROBE_LAST", cb_name[cb], 1));
	snprintf(name, sizeof(name), "PROBE_PROC_%s_%s", tag, cb_name[cb]);
	json_int(f, "libc_setenv", &n, setenv(name, "1", 1));
	fputc('}', f);
}

static void put_jobcontrol(FILE *f, spank_t sp, enum cb cb)
{
	char name[128];
	int n = 0;

	fputc('{', f);
	put_get(f, &n, "getenv(MISSING)", spank_job_control_getenv, sp, "PROBE_NO_SUCH_VARIABLE",
		4096);
	json_int(f, "setenv(NEW,ow=0)", &n, spank_job_control_setenv(sp, "PROBE_JC", "v1", 0));
	put_get(f, &n, "getenv(NEW)", spank_job_control_getenv, sp, "PROBE_JC", 4096);
	put_get(f, &n, "getenv(NEW,len=2)", spank_job_control_getenv, sp, "PROBE_JC", 2);
	put_get(f, &n, "getenv(NEW,len=0)", spank_job_control_getenv, sp, "PROBE_JC", 0);
	put_get(f, &n, "getenv(SPANK_PROBE_JC)", spank_job_control_getenv, sp, "SPANK_PROBE_JC",
		4096);
	json_int(f, "setenv(existing,ow=0)", &n, spank_job_control_setenv(sp, "PROBE_JC", "v2", 0));
	json_int(f, "setenv(existing,ow=1)", &n, spank_job_control_setenv(sp, "PROBE_JC", "v3", 1));
	put_get(f, &n, "getenv(NEW)#3", spank_job_control_getenv, sp, "PROBE_JC", 4096);
	json_int(f, "unsetenv(existing)", &n, spank_job_control_unsetenv(sp, "PROBE_JC"));
	put_get(f, &n, "getenv(NEW)#4", spank_job_control_getenv, sp, "PROBE_JC", 4096);
	json_int(f, "unsetenv(MISSING)", &n,
		 spank_job_control_unsetenv(sp, "PROBE_NO_SUCH_VARIABLE"));
	json_int(f, "unsetenv(NULL)", &n, spank_job_control_unsetenv(sp, NULL));
	json_int(f, "setenv(NULLval)", &n, spank_job_control_setenv(sp, "PROBE_JC", NULL, 1));
	json_int(f, "setenv(NULLname)", &n, spank_job_control_setenv(sp, NULL, "v", 1));
	snprintf(name, sizeof(name), "PROBE_JCSET_%s_%s", tag, cb_name[cb]);
	json_int(f, "setenv(PROBE_JCSET_cb)", &n, spank_job_control_setenv(sp, name, "jc", 1));
	json_int(f, "setenv(PROBE_JC_LAST)", &n,
		 spank_job_control_setenv(sp, "PROBE_JC_LAST", cb_name[cb], 1));
	fputc('}', f);
}

/* ---- options and the rest ---- */

static void put_getopt(FILE *f, spank_t sp)
{
	static struct spank_option unknown = {"nosuchopt", "value", "", 1, 0, NULL};
	struct spank_option *const opts[] = {&TABLE[0], &TABLE[1], &TABLE[2],
					     &preg,	&pregflag, &unknown};
	char untouched[] = "UNTOUCHED";
	int n = 0;

	fputc('{', f);
	for (size_t i = 0; i < sizeof(opts) / sizeof(opts[0]); i++) {
		char *arg = untouched;
		spank_err_t rc = spank_option_getopt(sp, opts[i], &arg);
		json_key(f, opts[i]->name, &n);
		fprintf(f, "{\"rc\":%d,\"optarg\":", (int)rc);
		json_string(f, arg);
		fputc('}', f);
	}
	char *arg = untouched;
	json_int(f, "NULLopt", &n, spank_option_getopt(sp, NULL, &arg));
	json_int(f, "has_arg&NULLoptarg", &n, spank_option_getopt(sp, &TABLE[0], NULL));
	json_int(f, "flag&NULLoptarg", &n, spank_option_getopt(sp, &TABLE[1], NULL));
	fputc('}', f);
}

static void put_symbols(FILE *f)
{
	static const char *const symbols[] = {
		"slurm_spank_init",
		"slurm_spank_init_post_opt",
		"slurm_spank_local_user_init",
		"slurm_spank_user_init",
		"slurm_spank_task_init_privileged",
		"slurm_spank_task_init",
		"slurm_spank_task_post_fork",
		"slurm_spank_task_exit",
		"slurm_spank_exit",
		"slurm_spank_slurmd_exit",
		"slurm_spank_job_prolog",
		"slurm_spank_job_epilog",
		"slurm_spank_slurmd_init",
		"slurm_spank_bogus",
		"spank_getenv",
		"spank_get_item",
		"init",
		"",
	};
	int n = 0;

	fputc('{', f);
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
		json_int(f, symbols[i], &n, spank_symbol_supported(symbols[i]));
	json_int(f, "NULL", &n, spank_symbol_supported(NULL));
	fputc('}', f);
}

static double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* One write, so that lines of several processes do not mix. */
static void flush_line(char *line, size_t size)
{
	if (out_fd < 0 || write(out_fd, line, size) != (ssize_t)size)
		fprintf(stderr, "probe: cannot write its record\n");
	free(line);
}

static void open_record(int ac, char **av)
{
	if (out_fd >= 0)
		return;
	first_pid = getpid();
	count_heap = calloc(1, sizeof(*count_heap));
	for (int i = 0; i < ac; i++)
		if (strncmp(av[i], "tag=", 4) == 0)
			tag = av[i] + 4;
	for (int i = 0; i < ac; i++)
		if (strcmp(av[i], "lite") == 0)
			lite = 1;
	int fd = open(PROBE_OUT, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	/* Far above what a host uses, so that its own numbers stay as they are. */
	out_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500);
	close(fd);
}

static void put_process(FILE *f, int *n)
{
	char buf[8192];

	put_ids(f, n);
	json_key(f, "cwd", n);
	char *cwd = getcwd(buf, sizeof(buf));
	json_string(f, cwd);
	json_key(f, "comm", n);
	slurp("/proc/self/comm", buf, sizeof(buf));
	json_string(f, buf);
	json_key(f, "cmdline", n);
	slurp("/proc/self/cmdline", buf, sizeof(buf));
	json_string(f, buf);
	json_key(f, "oom_score_adj", n);
	slurp("/proc/self/oom_score_adj", buf, sizeof(buf));
	json_string(f, buf);
	json_key(f, "status", n);
	put_status(f);
	json_key(f, "rlimit", n);
	put_rlimit(f);
	json_key(f, "fds", n);
	put_fds(f);
}

static void put_registration(FILE *f, int *n, spank_t sp, enum cb cb)
{
	if (cb != CB_INIT) {
		if (lite)
			return;
		static struct spank_option late = {"plate", NULL, "registered too late",
						   0,	    46,	  NULL};
		json_int(f, "option_register_outside_init", n, spank_option_register(sp, &late));
		return;
	}
	json_key(f, "register", n);
	int k = 0;
	fputc('{', f);
#ifndef NO_OPTIONS
	json_int(f, "preg", &k, spank_option_register(sp, &preg));
	json_int(f, "pregflag", &k, spank_option_register(sp, &pregflag));
	if (!lite && spank_context() == S_CTX_SLURMD) { /* as it was recorded */
		json_int(f, "preg_again_same", &k, spank_option_register(sp, &preg));
		json_int(f, "NULLopt", &k, spank_option_register(sp, NULL));
	}
#else
	(void)sp;
	(void)k;
#endif
	fputc('}', f);
}

/* What every call of the API answers. */
static void put_api(FILE *f, int *n, spank_t sp, enum cb cb)
{
	char **env = NULL;

	json_key(f, "items", n);
	put_items(f, sp);
	json_key(f, "env", n);
	put_env(f, sp, cb);
#ifdef NO_CRASH
	if (spank_context() != S_CTX_JOB_SCRIPT)
#endif
	{
		json_key(f, "jobcontrol", n);
		put_jobcontrol(f, sp, cb);
	}
	json_key(f, "getopt", n);
	put_getopt(f, sp);
	json_key(f, "symbol_supported", n);
	put_symbols(f);
	json_int(f, "remote(NULL)", n, spank_remote(NULL));
	if (spank_get_item(sp, S_JOB_ENV, &env) == ESPANK_SUCCESS) {
		json_key(f, "jobenv", n);
		if (env == NULL)
			fputs("null", f);
		else
			json_list(f, env);
	}
	json_key(f, "environ", n);
	json_list(f, environ);
}

/* What the plugstack line wants this callback to return. */
static int wanted_rc(enum cb cb, int ac, char **av)
{
	size_t len = strlen(cb_name[cb]);

	for (int i = 0; i < ac; i++) {
		if (strncmp(av[i], "fail=", 5) != 0 || strncmp(av[i] + 5, cb_name[cb], len) != 0 ||
		    av[i][5 + len] != '=')
			continue;
		const char *ctx = strchr(av[i], '@');
		if (ctx == NULL || atoi(ctx + 1) == (int)spank_context())
			return atoi(av[i] + 5 + len + 1);
	}
	return 0;
}

static int record(enum cb cb, spank_t sp, int ac, char **av)
{
	double t = now();
	int ret = wanted_rc(cb, ac, av);
	char *line = NULL;
	size_t size = 0;
	int n = 0;

	open_record(ac, av);
	count_total++;
	(*count_heap)++;
	count_cb[cb]++;

	FILE *f = open_memstream(&line, &size);
	fputc('{', f);
	json_key(f, "t", &n);
	fprintf(f, "%.6f", t);
	json_key(f, "tag", &n);
	json_string(f, tag);
	json_key(f, "cb", &n);
	json_string(f, cb_name[cb]);
	json_int(f, "ctx", &n, spank_context());
	json_int(f, "remote", &n, spank_remote(sp));
	json_key(f, "argv", &n);
	json_list(f, av);
	json_int(f, "argv_null_terminated", &n, av[ac] == NULL);
	json_key(f, "counters", &n);
	put_counters(f);
	put_process(f, &n);
	put_registration(f, &n, sp, cb);
	if (!lite)
		put_api(f, &n, sp, cb);
	json_int(f, "ret", &n, ret);
	fputs("}\n", f);
	fclose(f);
	flush_line(line, size);
	return ret;
}

static int opt_cb(int val, const char *optarg, int remote)
{
	char *line = NULL;
	size_t size = 0;
	int n = 0;

	count_opt_cb++;
	opt_hits++;
	FILE *f = open_memstream(&line, &size);
	fputc('{', f);
	json_key(f, "tag", &n);
	json_string(f, tag);
	json_key(f, "cb", &n);
	json_string(f, "opt_cb");
	json_int(f, "ctx", &n, spank_context());
	json_int(f, "val", &n, val);
	json_key(f, "optarg", &n);
	json_string(f, optarg);
	json_int(f, "remote", &n, remote);
	json_int(f, "pid", &n, getpid());
	uid_t r, e, s;
	getresuid(&r, &e, &s);
	json_key(f, "resuid", &n);
	fprintf(f, "[%u,%u,%u]", r, e, s);
	json_int(f, "init_count", &n, count_cb[CB_INIT]);
	json_int(f, "post_opt_count", &n, count_cb[CB_INIT_POST_OPT]);
	fputs("}\n", f);
	fclose(f);
	flush_line(line, size);
	if (optarg == NULL)
		return 0;
	return strcmp(optarg, "FAIL") == 0 || (remote && strcmp(optarg, "RFAIL") == 0) ? -1 : 0;
}

#define HOOK(name, cb)                                                                             \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		return record(cb, sp, ac, av);                                                     \
	}

HOOK(init, CB_INIT)
HOOK(init_post_opt, CB_INIT_POST_OPT)
HOOK(local_user_init, CB_LOCAL_USER_INIT)
HOOK(user_init, CB_USER_INIT)
HOOK(task_init_privileged, CB_TASK_INIT_PRIVILEGED)
HOOK(task_init, CB_TASK_INIT)
HOOK(task_post_fork, CB_TASK_POST_FORK)
HOOK(task_exit, CB_TASK_EXIT)
HOOK(exit, CB_EXIT)
HOOK(slurmd_exit, CB_SLURMD_EXIT)
HOOK(job_prolog, CB_JOB_PROLOG)
HOOK(job_epilog, CB_JOB_EPILOG)
