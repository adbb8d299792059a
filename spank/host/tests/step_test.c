// SPDX-License-Identifier: Apache-2.0
/* Whole steps: a spankhost ($SPANKHOST) is driven from SETUP to EXIT with a
 * plugin ($PLUGIN) and real tasks. Needs root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "test.h"

static const char *plugin;

static void test_hooks_in_order_with_their_rights(void)
{
	struct scene s = {.ntasks = 3,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .cwd = "/usr",
			  .plugins = {{plugin, true, {"one", "two"}}}};
	char *log;
	int status;
	char *out = drv_step(&s, &log, &status);

	CHECK_INT(status, 0);
	has(log,
	    "log 2 rank=-1 plugin=0: init uid=0,0,0 gid=0,0,0 groups=0 cwd=/ blk=87a07 umask=22 "
	    "calls=1 ac=2 task=-1 pid=0 fd2=/dev/");
	has(log, "init_post_opt uid=0,0,0 gid=0,0,0 groups=0 cwd=/ blk=87a07 umask=22 calls=2");
	has(log, "user_init uid=0,7001,0 gid=0,7001,0 groups=3 cwd=/usr blk=87a07 umask=27 calls=3 "
		 "ac=2 task=-1 pid=0 fd2=pipe:");
	has(log, "rank=2 plugin=0: task_init_privileged uid=0,0,0 gid=0,0,0 groups=3 cwd=/usr "
		 "blk=87a07 umask=27 calls=4 ac=2 task=2 pid=-1 fd2=pipe:");
	has(log, "rank=-1 plugin=0: task_post_fork uid=0,0,0 gid=0,0,0 groups=3 cwd=/ blk=87a07 "
		 "umask=27 calls=6 ac=2 task=2 pid=1 fd2=pipe:");
	has(log, "rank=1 plugin=0: task_init uid=7001,7001,7001 gid=7001,7001,7001 groups=3 "
		 "cwd=/usr blk=0 umask=27 calls=5 ac=2 task=1 pid=-1 fd2=pipe:");
	has(log, "task_exit uid=0,0,0 gid=0,0,0 groups=3 cwd=/ blk=87a07 umask=27 calls=9");
	has(log, "exit uid=0,0,0 gid=0,0,0 groups=3 cwd=/ blk=87a07 umask=27 calls=10 ac=2 task=-1 "
		 "pid=0 fd2=/dev/");
	free(out);
	free(log);
}

static void of_extern_step(struct blob *setup)
{
	blob_tlv_u32(setup, TAG_STEP_ID, EXTERN_STEP);
}

/* The one task is root's, and heeds no signal that is meant for the job's programs. */
static void test_extern_step(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"/bin/sh", "-c",
				   "kill -USR1 $$; kill -HUP $$; id -u >&2; echo "
				   "$SLURM_PROCID$LD_PRELOAD; pwd; "
				   "echo $TMPDIR"},
			  .env = {PATH_ENV, "LD_PRELOAD=/nowhere.so", "TMPDIR=/root-made-it"},
			  .cwd = "/usr",
			  .plugins = {{plugin, true}},
			  .config = of_extern_step};
	char *log;
	int status;
	char *out = drv_step(&s, &log, &status);

	CHECK_INT(status, 0);
	has(out, "0\n");
	has(out, "\n/\n/tmp\n"); /* nothing of the user's environment */
	has(log, "init uid=0,0,0");
	has(log, "init_post_opt uid=0,0,0");
	has(log, "task_post_fork uid=0,0,0 gid=0,0,0 groups=0 cwd=/ blk=87a07 umask=22 calls=3");
	has(log, "exit uid=0,0,0 gid=0,0,0 groups=0 cwd=/ blk=87a07 umask=22 calls=4");
	CHECK(strstr(log, "user_init") == NULL && strstr(log, "task_init") == NULL &&
	      strstr(log, "task_exit") == NULL);
	free(out);
	free(log);
}

static void test_items(void)
{
	struct scene s = {.ntasks = 2,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .plugins = {{plugin, true, {"items"}}}};
	char *log;
	int status;

	free(drv_step(&s, &log, &status));
	has(log, "items init 0 3007 3001 3008 3002 env 3004 3005 3001 3003 3001 job 3010 remote 1 "
		 "getopt 3009\n");
	has(log, "items user_init 0 3007 3001 3008 3002 env 3004 3005 3001 3003 3001 job 3010 "
		 "remote 1 getopt 3001\n");
	has(log, "items task_init 0 3007 3001 3008 3002 env");
	has(log, "items task_post_fork 0 3007 3001 3007 3002 env");
	has(log, "items task_exit 0 3007 3001 3007 0 env");
	has(log, "null 3001 bogus 3001 version 26.05.0");
	free(log);
}

static void give_option(struct blob *b, const char *plugin_name, const char *name,
			const char *value)
{
	size_t at = blob_open(b, TAG_OPTION);

	blob_u32(b, value != NULL);
	blob_str(b, plugin_name);
	blob_str(b, name);
	blob_str(b, value ? value : "");
	blob_close(b, at);
}

static void give_options(struct blob *b)
{
	give_option(b, "probe", "popt", "bad");
	give_option(b, "probe", "pflag", NULL);
	give_option(b, "", "probe_popt", "bad");
	give_option(b, "", "probe_pflag", "");
}

static void give_unknown(struct blob *b)
{
	give_option(b, "probe", "other", "x");
	give_option(b, "absent", "other", "x");
	give_option(b, "", "probe_other", "x");
}

/* What is not registered here is passed over, and logged. */
static void test_unknown_options(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"true"},
			  .config = give_unknown,
			  .env = {PATH_ENV},
			  .plugins = {{plugin, true, {"opt"}}}};
	char *log;
	int status;

	free(drv_step(&s, &log, &status));
	has(log,
	    "log 3 rank=-1 plugin=-1: spank: plugin \"probe\" option \"other\" not found on the "
	    "remote side\n"
	    "log 2 rank=-1 plugin=-1: spank: plugin \"absent\" option \"other\" not found on the "
	    "remote side: the plugin is not loaded\n"
	    "log 3 rank=-1 plugin=-1: spank: no plugin that is loaded on the remote side offers "
	    "option \"probe_other\" of the environment\n");
	free(log);
}

static void test_options(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"env"},
			  .config = give_options,
			  .env = {PATH_ENV, "_SLURM_SPANK_OPTION_probe_popt=one"},
			  .plugins = {{plugin, true, {"opt"}}, {plugin, false, {"opt"}}}};
	char *log;
	int status;
	char *out = drv_step(&s, &log, &status);

	has(log, "register 0 0");
	has(log, "spank: option \"popt\" provided by both probe.so and probe.so");
	has(log, "option val=5 arg=bad remote=1\n"
		 "log 1 rank=-1 plugin=0: spank: failed to process option popt=bad\n"
		 "log 2 rank=-1 plugin=0: option val=6 arg=(null) remote=1\n"
		 "log 2 rank=-1 plugin=0: option val=5 arg=bad remote=1\n"
		 "log 1 rank=-1 plugin=0: spank: failed to process option popt=bad\n"
		 "log 2 rank=-1 plugin=0: option val=6 arg= remote=1\n");
	has_not(out, "_SLURM_SPANK_OPTION_");
	free(out);
	free(log);
}

static void test_environment_and_limits(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"sh", "-c", "env; ulimit -n; ls /proc/self/fd"},
			  .env = {PATH_ENV, "SLURM_RLIMIT_NOFILE=100", "SLURM_RLIMIT_CORE=x"},
			  .plugins = {{plugin, true, {"prepend"}}}};
	char *log;
	int status;
	char *out = drv_step(&s, &log, &status);

	has(out, "PREPENDED=1\n");
	has(out, "SLURM_TASK_PID=");
	has(out, "TMPDIR=/tmp\n");
	has_not(out, "RLIMIT");
	has_not(out, "HOSTVAR");
	has(out, "\n100\n0\n1\n2\n3\n"); /* 3 is ls's own */
	has_not(out, "\n4\n");
	has(log, "cannot read limit SLURM_RLIMIT_CORE=\"x\": not a number");
	free(out);
	free(log);
}

/* A task's descriptor survives exec, and its number is in the environment. */
static void test_task_fd(void)
{
	struct scene s = {.ntasks = 2,
			  .argv = {"sh", "-c", "echo $SLURM_PROCID >&$PMI_FD"},
			  .env = {PATH_ENV}};
	struct driver d;
	int pipe[2];

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	CHECK(pipe2(pipe, O_CLOEXEC) == 0);
	uint32_t index = drv_fd(&d, pipe[1]);
	close(pipe[1]);
	for (uint32_t rank = 0; rank < 2; rank++) {
		size_t at = blob_open(&d.step, TAG_TASK_FD);
		blob_u32(&d.step, rank);
		blob_u32(&d.step, index);
		blob_str(&d.step, "PMI_FD");
		blob_close(&d.step, at);
		at = blob_open(&d.step, TAG_TASK_ENV);
		blob_u32(&d.step, rank);
		blob_str(&d.step, rank ? "SLURM_PROCID=1" : "SLURM_PROCID=0");
		blob_close(&d.step, at);
	}
	drv_run(&d);
	char *out = drv_read_all(pipe[0]);
	CHECK(strcmp(out, "0\n1\n") == 0 || strcmp(out, "1\n0\n") == 0);
	free(out);
	drv_end(&d);
}

/* By the words of numa_maps, and by the kernel's refusal. */
static void test_mem_policy(void)
{
	static const struct {
		uint32_t mode, words;
		uint64_t nodes;
		const char *line;
		const char *log;
	} cases[] = {
		{2, 1, 1, " bind:0 ", ""},
		{1, 1, 1, " prefer:0 ", ""},
		{4, 0, 0, " local ", ""},
		{2, 1, 1ull << 63, "", "fail rank=0 stage=11 errno=22 the memory nodes"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scene s = {.ntasks = 1,
				  .argv = {"cat", "/proc/self/numa_maps"},
				  .env = {PATH_ENV},
				  .plugins = {{plugin, true, {0}}}};
		struct driver d;

		drv_start(&d);
		drv_setup(&d, &s);
		CHECK_INT(drv_init(&d, &s).rc, 0);
		int out = drv_output(&d, 1);
		size_t at = blob_open(&d.step, TAG_MEM_POLICY);
		blob_u32(&d.step, 0);
		blob_u32(&d.step, cases[i].mode);
		for (uint32_t n = 0; n < cases[i].words; n++) {
			blob_u32(&d.step, (uint32_t)cases[i].nodes);
			blob_u32(&d.step, (uint32_t)(cases[i].nodes >> 32));
		}
		blob_close(&d.step, at);
		drv_run(&d);
		char *log = drv_log(&d), *maps = drv_read_all(out);
		has(log, cases[i].log);
		has(maps, cases[i].line);
		CHECK_INT(d.status[0], cases[i].log[0] ? 1 << 8 : 0);
		drv_do(&d, CMD_EXIT, NULL, NULL, 0);
		drv_end(&d);
		free(log);
		free(maps);
	}
}

static void put_text(struct driver *d, unsigned int tag, uint32_t rank, const char *text)
{
	size_t at = blob_open(&d->step, tag);

	blob_u32(&d->step, rank);
	blob_str(&d->step, text);
	blob_close(&d->step, at);
}

/* Two commands in one step, in directories of their own. */
static void test_own_commands(void)
{
	struct scene s = {.ntasks = 3, .argv = {"pwd"}, .env = {PATH_ENV}, .cwd = "/"};
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	int out = drv_output(&d, 1);
	put_text(&d, TAG_TASK_ARG, 1, "sh");
	put_text(&d, TAG_TASK_ARG, 1, "-c");
	put_text(&d, TAG_TASK_ARG, 1, "echo $0 $1 in $PWD");
	put_text(&d, TAG_TASK_ARG, 1, "own");
	put_text(&d, TAG_TASK_ARG, 1, "argv");
	put_text(&d, TAG_TASK_CWD, 1, "usr");
	put_text(&d, TAG_TASK_CWD, 2, "no/such");
	drv_run(&d);
	char *log = drv_log(&d), *text = drv_read_all(out);
	has(text, "own argv in /usr\n");
	has(text, "/\n");
	has(log, "errno=2 no/such");
	CHECK_INT(d.status[0], 0);
	CHECK_INT(d.status[1], 0);
	CHECK_INT(d.status[2], 1 << 8);
	drv_do(&d, CMD_EXIT, NULL, NULL, 0);
	drv_end(&d);
	free(log);
	free(text);
}

/* What a plugin forks holds none of our channels: their end is ours alone. */
static void test_helper_holds_no_channel(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .plugins = {{plugin, true, {"helper=init", "thread=init_post_opt"}}}};
	struct driver d;
	char byte;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	char *log = drv_log(&d);
	has(log, "threads plugin=0 hook=2 1\n");
	has_not(log, "from the helper");
	free(log);
	kill(d.pid, SIGKILL);
	CHECK_STR(drv_replies(&d).what, "gone");
	CHECK(recv(d.log, &byte, 1, 0) == 0);
	drv_end(&d);
}

static bool mount_private_tmpfs(const char *dir)
{
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", dir, "tmpfs", 0, NULL) == 0;
}

/* A mount namespace in which /mnt is another directory. */
static int make_namespace(void)
{
	int ready[2];
	char path[64], c;

	CHECK(pipe2(ready, O_CLOEXEC) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		if (unshare(CLONE_NEWNS) == 0 && mount_private_tmpfs("/mnt") &&
		    mkdir("/mnt/inside", 0755) == 0 && write(ready[1], "y", 1) == 1)
			pause();
		_exit(1);
	}
	close(ready[1]);
	ssize_t n = read(ready[0], &c, 1);
	close(ready[0]);
	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", pid);
	int fd = n == 1 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return fd;
}

static void test_join(void)
{
	static const uint32_t how[] = {JOIN_TASKS, JOIN_HOST};

	for (int i = 0; i < 2; i++) {
		struct scene s = {.ntasks = 2,
				  .argv = {"pwd"},
				  .env = {PATH_ENV},
				  .cwd = "/mnt/inside",
				  .join = how[i],
				  .job_ns = make_namespace(),
				  .plugins = {{plugin, true, {0}}}};
		char *log;
		int status;

		CHECK(s.job_ns >= 0);
		char *out = drv_step(&s, &log, &status);
		close(s.job_ns);
		CHECK_STR(out, "/mnt/inside\n/mnt/inside\n");
		has(log, "task_init_privileged uid=0,0,0 gid=0,0,0 groups=3 cwd=/mnt/inside");
		free(out);
		free(log);
	}
}

/* A helper that a plugin leaves in a task does not keep the exec pipe open, and
 * what it logs comes out at standard error. */
static void test_helper_of_a_task(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .plugins = {{plugin, true, {"helper=task_init"}}}};
	struct driver d;
	char byte;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	int err = drv_output(&d, 2);
	drv_run(&d);
	CHECK_INT(read(d.exec_pipes[0], &byte, 1), 0);
	CHECK_INT(drv_do(&d, CMD_EXIT, NULL, NULL, 0).rc, 0);
	char text[64] = "";
	CHECK(read(err, text, sizeof(text) - 1) > 0);
	CHECK_STR(text, "stepd-node1: error: from the helper\n");
	close(err);
	CHECK(kill(-d.pids[0], SIGKILL) == 0);
	drv_end(&d);
}

/* More tasks than one packet tells. */
static void test_many_tasks(void)
{
	struct scene s = {.ntasks = 250, .argv = {"sh", "-c", "kill -9 $$"}, .env = {PATH_ENV}};
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	drv_run(&d);
	for (uint32_t i = 0; i < s.ntasks; i++)
		CHECK_INT(d.status[i], SIGKILL);
	drv_end(&d);
}

int main(void)
{
	plugin = getenv("PLUGIN");
	CHECK(plugin != NULL);
	drv_needs_root("step_test");
	RUN(test_hooks_in_order_with_their_rights);
	RUN(test_extern_step);
	RUN(test_items);
	RUN(test_options);
	RUN(test_unknown_options);
	RUN(test_environment_and_limits);
	RUN(test_task_fd);
	RUN(test_mem_policy);
	RUN(test_helper_holds_no_channel);
	RUN(test_own_commands);
	RUN(test_join);
	RUN(test_helper_of_a_task);
	RUN(test_many_tasks);
	return 0;
}
