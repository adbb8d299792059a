// SPDX-License-Identifier: Apache-2.0
/* Steps that fail: plugins that refuse them, commands that cannot be exec'd, and a daemon that
 * ends or talks nonsense. As step_test: $SPANKHOST, $PLUGIN, root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "test.h"

static const char *plugin;

static void write_file(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	CHECK(fchmod(fd, mode) == 0);
	close(fd);
}

/* why is in the explanation behind it. */
static void check_exec(const char *command, int error, const char *path, const char *why)
{
	struct scene s = {.ntasks = 1, .argv = {command}, .env = {PATH_ENV}};
	char *log, want[256];
	int status;

	free(drv_step(&s, &log, &status));
	snprintf(want, sizeof(want), "fail rank=0 stage=%d errno=%d %s (", STAGE_EXEC, error, path);
	has(log, want);
	has(log, why);
	CHECK_INT(status, error << 8);
	free(log);
}

static void test_exec_failures(void)
{
	char dir[] = "/tmp/stepXXXXXX", path[64];

	CHECK(mkdtemp(dir) != NULL && chmod(dir, 0755) == 0);
	check_exec("no-such-command", 2, "no-such-command",
		   "no directory of PATH has it: /usr/bin:/bin)");
	check_exec("/no/such/file", 2, "/no/such/file", "the directory \"/no\" does not exist)");
	check_exec(dir, 13, dir, "is a directory)");
	snprintf(path, sizeof(path), "%s/f", dir);
	write_file(path, "x", 0644);
	check_exec(path, 13, path, "has mode 0644: no user may execute it)");
	write_file(path, "neither a script nor a binary", 0755);
	check_exec(path, 8, path, "its first line does not begin with #!)");
	write_file(path, "#! /no/such/interp -x\n", 0755);
	check_exec(path, 2, "bad interpreter(/no/such/interp)", "the interpreter (#!) of ");
	unlink(path);
	rmdir(dir);
}

static void test_required_hook_fails(void)
{
	static const struct {
		const char *fail;
		uint32_t cmd, hook;
	} cases[] = {
		{"fail=init:-1", CMD_INIT, HOOK_INIT},
		{"fail=init_post_opt:-5", CMD_INIT, HOOK_INIT_POST_OPT},
		{"fail=user_init:1", CMD_USER_INIT, HOOK_USER_INIT},
		{"fail=task_post_fork:-1", CMD_POST_FORK, HOOK_TASK_POST_FORK},
		{"fail=task_exit:-1", CMD_WAIT, HOOK_TASK_EXIT},
		{"fail=exit:-1", CMD_EXIT, HOOK_EXIT},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scene s = {
			.ntasks = 1,
			.argv = {"true"},
			.env = {PATH_ENV},
			.plugins = {{plugin, true, {cases[i].fail}}, {plugin, true, {0}}}};
		static const uint32_t order[] = {CMD_INIT,	CMD_STEP, CMD_USER_INIT, CMD_FORK,
						 CMD_POST_FORK, CMD_WAIT, CMD_EXIT};
		struct driver d;
		struct done done = {0};

		drv_start(&d);
		drv_setup(&d, &s);
		for (int k = 0; k < 7 && done.rc == 0; k++) {
			int fd = order[k] == CMD_STEP ? blob_memfd(&d.step) : -1;

			if (order[k] == CMD_WAIT)
				drv_open_gate(&d);
			done = order[k] == CMD_INIT ? drv_init(&d, &s)
						    : drv_do(&d, order[k], NULL, &fd, fd >= 0);
			if (fd >= 0)
				close(fd);
		}
		CHECK_INT(done.cmd, cases[i].cmd);
		CHECK_INT(done.rc, atoi(strchr(cases[i].fail, ':') + 1));
		CHECK_INT(done.hook, cases[i].hook);
		CHECK_INT(done.plugin, 0);
		char *log = drv_log(&d);
		has(log, "log 1 rank=-1 plugin=0: spank: required plugin probe.so: ");
		has(log, "() failed with rc=");
		/* The second of the stack was not called. */
		char other[64];
		snprintf(other, sizeof(other), "plugin=1: %.*s uid",
			 (int)strcspn(cases[i].fail + 5, ":"), cases[i].fail + 5);
		has_not(log, other);
		free(log);
		drv_end(&d);
	}
}

static void check_task_hook(bool required, const char *arg, int status, const char *part)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .plugins = {{plugin, required, {arg}}}};
	char *log;
	int have;

	free(drv_step(&s, &log, &have));
	CHECK_INT(have & ~0x80, status); /* a core or not */
	has(log, part);
	free(log);
}

static void test_task_hook_fails(void)
{
	check_task_hook(true, "fail=task_init:-1", 1 << 8,
			"spank: required plugin probe.so: task_init() failed with rc=-1");
	check_task_hook(true, "fail=task_init:-1", 1 << 8, "fail rank=0 stage=8 errno=0 probe.so");
	check_task_hook(true, "fail=task_init_privileged:-1", 1 << 8,
			"fail rank=0 stage=4 errno=0");
	check_task_hook(true, "fail=task_init:3000", 1 << 8, "task_init() failed with rc=3000");
	check_task_hook(false, "fail=task_init:-1", 0, "task_exit");
	check_task_hook(
		false, "fail=task_init:-2147483648", 0,
		"log 8 rank=0 plugin=0: spank: optional plugin probe.so: task_init() failed "
		"with rc=-2147483648");
	check_task_hook(true, "crash=task_init", SIGSEGV, "task_exit");
	check_task_hook(true, "exit=task_init", 0, "task_exit");
}

static void check_stream_error(const char *path, uint32_t flags, int error)
{
	struct scene s = {.ntasks = 1, .argv = {"true"}, .env = {PATH_ENV}};
	char want[128];
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	drv_stream(&d, NO_RANK, 1, STREAM_FILE, flags, path);
	drv_run(&d);
	CHECK_INT(d.status[0], 1 << 8);
	char *log = drv_log(&d);
	snprintf(want, sizeof(want), "fail rank=0 stage=%d errno=%d %s (", STAGE_STDIO, error,
		 path);
	has(log, want);
	free(log);
	drv_end(&d);
}

static void test_streams_are_opened_as_the_user(void)
{
	check_stream_error("/etc/shadow", O_RDONLY, 13);
	check_stream_error("/root-only", O_WRONLY | O_CREAT, 13);
	check_stream_error("no/such/dir", O_WRONLY | O_CREAT, 2);
}

static void test_missing_cwd(void)
{
	struct scene s = {.ntasks = 2, .argv = {"pwd"}, .env = {PATH_ENV}, .cwd = "/no/such/dir"};
	char *log;
	int status;
	char *out = drv_step(&s, &log, &status);

	CHECK_STR(out, "/tmp\n/tmp\n");
	CHECK_STR(log, "log 1 rank=-1 plugin=-1: couldn't chdir to `/no/such/dir': No such file or "
		       "directory: going to /tmp instead\n");
	free(out);
	free(log);
}

static void test_bad_commands(void)
{
	struct scene s = {.ntasks = 1, .argv = {"true"}, .env = {PATH_ENV}};
	struct blob body = {0};
	struct driver d;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	drv_start(&d);
	CHECK_INT(drv_do(&d, CMD_LOAD, NULL, NULL, 0).rc, -1);
	CHECK_INT(drv_do(&d, CMD_SETUP, NULL, NULL, 0).rc, -1);
	CHECK_INT(drv_do(&d, 99, NULL, &null, 1).rc, -1);
	blob_u32(&body, 99);
	int four[] = {null, null, null, null};
	has(drv_do(&d, CMD_SETUP, &body, four, 4).what, "protocol 99");
	drv_setup(&d, &s);
	CHECK_INT(drv_do(&d, CMD_FORK, NULL, NULL, 0).rc, -1);
	CHECK_INT(drv_do(&d, CMD_INIT, &body, NULL, 0).rc, -1);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	CHECK_INT(drv_init(&d, &s).rc, -1);
	CHECK_INT(drv_do(&d, CMD_USER_INIT, NULL, NULL, 0).rc, -1);
	drv_run(&d);
	CHECK_INT(d.status[0], 0);
	blob_free(&body);
	close(null);
	drv_end(&d);
}

/* The gate's end of file, and a command during WAIT. */
static void test_gate_ends(void)
{
	struct scene s = {.ntasks = 2,
			  .argv = {"sleep", "100"},
			  .env = {PATH_ENV},
			  .plugins = {{plugin, true, {0}}}};
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	drv_fork(&d);
	close(d.gate);
	d.gate = -1;
	CHECK_INT(drv_do(&d, CMD_WAIT, NULL, NULL, 0).rc, 0);
	CHECK_INT(d.status[0], 1 << 8);
	CHECK_INT(d.status[1], 1 << 8);
	drv_end(&d);

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	drv_fork(&d);
	drv_open_gate(&d);
	drv_send(&d, CMD_WAIT, NULL, NULL, 0);
	struct done done = drv_do(&d, CMD_EXIT, NULL, NULL, 0);
	CHECK_INT(done.cmd, CMD_EXIT);
	CHECK_INT(done.rc, 0);
	for (int i = 0; i < 2; i++)
		kill(d.pids[i], SIGKILL);
	drv_end(&d);
}

static void want_no_new_privs(struct blob *b)
{
	blob_tlv_u32(b, TAG_NO_NEW_PRIVS, 1);
}

/* Whatever of becoming the user fails, loudly or not, no task is exec'd. */
static void test_no_exec_unless_the_user(void)
{
	static const struct lie lies[] = {
		{SYS_setgroups, 0, 3, 0, false},
		{SYS_setgroups, 0, 3, EPERM, false},
		{SYS_setresgid, 1, TEST_UID, 0, false}, /* also setegid */
		{SYS_setresgid, 0, TEST_UID, 0, false},
		{SYS_setresgid, 0, TEST_UID, EPERM, false},
		{SYS_setresuid, 1, TEST_UID, 0, false}, /* also seteuid */
		{SYS_setresuid, 0, TEST_UID, 0, false},
		{SYS_setresuid, 0, TEST_UID, EAGAIN, false},
		{SYS_setuid, 0, 0, 0, false},
		{SYS_capget, 0, 0, EPERM, true},
		{SYS_prctl, 0, PR_SET_NO_NEW_PRIVS, 0, false},
		{SYS_prctl, 0, PR_SET_NO_NEW_PRIVS, EINVAL, false},
	};

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct scene s = {.ntasks = 1,
				  .argv = {"echo", "ran"},
				  .env = {PATH_ENV},
				  .config = want_no_new_privs};
		struct driver d;

		drv_start_lying(&d, &lies[i]);
		drv_setup(&d, &s);
		CHECK_INT(drv_init(&d, &s).rc, 0);
		int out = drv_output(&d, 1), fd = blob_memfd(&d.step);
		CHECK_INT(drv_do(&d, CMD_STEP, NULL, &fd, 1).rc, 0);
		close(fd);
		bool dropped = drv_do(&d, CMD_USER_INIT, NULL, NULL, 0).rc == 0;
		if (dropped) {
			CHECK_INT(drv_do(&d, CMD_FORK, NULL, NULL, 0).rc, 0);
			drv_open_gate(&d);
			CHECK_INT(drv_do(&d, CMD_WAIT, NULL, NULL, 0).rc, 0);
			CHECK_INT(d.status[0], 1 << 8);
			char *log = drv_log(&d);
			has(log, "fail rank=0 stage=");
			free(log);
		}
		drv_end(&d);
		char *text = drv_read_all(out);
		CHECK_STR(text, "");
		free(text);
	}
}

static void test_refused_plugins(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .plugins = {{"/no/such/plugin.so", false, {0}}, {plugin, true, {0}}}};
	struct blob keep = {0};
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(d.flags[0], 0);
	CHECK_INT(d.flags[1], PLUGIN_LOADED | PLUGIN_HAS_VERSION | PLUGIN_HAS_SPANK_VERSION);
	CHECK_INT(d.version[1], 0x1a0500);
	CHECK_INT(d.hooks[1], 1 << HOOK_INIT | 1 << HOOK_INIT_POST_OPT | 1 << HOOK_USER_INIT |
				      1 << HOOK_TASK_INIT_PRIVILEGED | 1 << HOOK_TASK_INIT |
				      1 << HOOK_TASK_POST_FORK | 1 << HOOK_TASK_EXIT |
				      1 << HOOK_EXIT | 1 << HOOK_BEGIN | 1 << HOOK_FINI);
	CHECK_STR(d.name, "probe");
	CHECK_INT(drv_init(&d, &s).rc, -1); /* keeps what is not loaded */
	blob_u32(&keep, 2);
	blob_bytes(&keep, "\0\0", 2);
	CHECK_INT(drv_do(&d, CMD_INIT, &keep, NULL, 0).rc, 0);
	drv_run(&d);
	char *log = drv_log(&d);
	CHECK_STR(log, "");
	free(log);
	blob_free(&keep);
	drv_end(&d);
}

int main(void)
{
	plugin = getenv("PLUGIN");
	CHECK(plugin != NULL);
	drv_needs_root("failure_test");
	RUN(test_exec_failures);
	RUN(test_required_hook_fails);
	RUN(test_task_hook_fails);
	RUN(test_streams_are_opened_as_the_user);
	RUN(test_missing_cwd);
	RUN(test_bad_commands);
	RUN(test_gate_ends);
	RUN(test_no_exec_unless_the_user);
	RUN(test_refused_plugins);
	return 0;
}
