// SPDX-License-Identifier: Apache-2.0
/* What plugins find here beside spank.h, and what becomes of a call of what they
 * do not find: a spankhost ($SPANKHOST) with the plugins in $PLUGINS. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "test.h"

static const char *plugin(const char *name)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/%s", getenv("PLUGINS"), name);
	return path;
}

static void job_tags(struct blob *b)
{
	blob_tlv_str(b, TAG_USER, "someone");
	blob_tlv_u32(b, TAG_NNODES, 1);
	blob_tlv_u32(b, TAG_NCPUS, 4);
	blob_tlv_u32(b, TAG_CPUS_PER_TASK, 2);
	blob_tlv_u32(b, TAG_RESTARTS, 3);
	blob_tlv_u64(b, TAG_JOB_MEM, 1ull << 33);
	blob_tlv_str(b, TAG_JOB_NAME, "a name");
	blob_tlv_str(b, TAG_PARTITION, "debug");
	blob_tlv_str(b, TAG_NODE_LIST, "node1");
	blob_tlv_str(b, TAG_CLUSTER, "golden");
	blob_tlv_str(b, TAG_SUBMIT_HOST, "login1");
	blob_tlv_u32(b, TAG_BATCH, 0);
	blob_tlv_u32(b, TAG_JOB_NNODES, 1);
	blob_tlv_u32(b, TAG_JOB_NCPUS, 4);
	blob_tlv_u32(b, TAG_JOB_NTASKS, 2);
	blob_tlv_u32(b, TAG_JOB_PER_TASK, 2);
	blob_tlv_u32(b, TAG_JOB_LIMIT, 90);
	blob_tlv_u32(b, TAG_JOB_ARRAY, 11);
	blob_tlv_u32(b, TAG_ARRAY_TASK, 6);
	blob_tlv_u64(b, TAG_JOB_START, 1000000);
}

static struct scene scene(const char *name, const char *arg)
{
	return (struct scene){.ntasks = 2,
			      .argv = {"true"},
			      .env = {"PATH=/usr/bin:/bin"},
			      .config = job_tags,
			      .plugins = {{plugin(name), true, {arg}}}};
}

/* The slot of a task, or of the host: -1. */
static const struct board_slot *slot(const struct driver *d, int rank)
{
	return (const struct board_slot *)(d->board + 1) + rank + 1;
}

static void test_missing_is_told(void)
{
	struct scene s = scene("imports.so", "fine=init");
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	/* Neither what is weak, nor what the C library, a library of the plugin or
	 * the host has. */
	CHECK(strcmp(d.missing, "0:nobody_has_this+0 0:slurm_update_node+0 ") == 0 ||
	      strcmp(d.missing, "0:slurm_update_node+0 0:nobody_has_this+0 ") == 0);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	drv_run(&d);
	CHECK_INT(d.status[0], 0);
	char *log = drv_log(&d);
	has(log, "an error\n");
	has(log, "weak 0 first n1 rest 2 error -1 pow 2\n");
	free(log);
	drv_end(&d);
}

static void test_more_than_are_told(void)
{
	struct scene s = scene("many.so", NULL);
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	has(d.missing, "0:many_10+0 ");
	has(d.missing, "0:+8 "); /* 70 and the two of imports.so, less 64 */
	drv_end(&d);
}

/* The number of the symbol in the order in which they were told. */
static int number_of(const struct driver *d, const char *symbol)
{
	int n = 0;

	for (const char *p = d->missing; p < strstr(d->missing, symbol); p++)
		n += *p == ' ';
	return n;
}

static void check_end_in_init(const char *arg, bool twice, int status, int fault,
			      const char *symbol)
{
	struct scene s = scene("imports.so", arg);
	struct driver d;
	int have;

	if (twice)
		s.plugins[1] = (struct plugin_line){s.plugins[0].path, true, {0}};
	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_STR(drv_init(&d, &s).what, "gone");
	CHECK(waitpid(d.pid, &have, 0) == d.pid);
	CHECK_INT(have, status << 8);
	CHECK_INT(slot(&d, -1)->hook, HOOK_INIT);
	CHECK_INT(slot(&d, -1)->error, -(fault + (symbol ? number_of(&d, symbol) : 0)));
	if (fault == FAULT_FATAL) {
		char *log = drv_log(&d);

		has(log, "log 1 rank=-1 plugin=0: fatal: no way in init\n");
		free(log);
	}
	drv_end(&d);
}

static void test_calls_end_the_host(void)
{
	check_end_in_init("call=init", false, 127, FAULT_MISSING, "slurm_update_node");
	check_end_in_init("other=init", false, 127, FAULT_MISSING, "nobody_has_this");
	check_end_in_init("other=init", true, 127, FAULT_MISSING, "nobody_has_this");
	check_end_in_init("fatal=init", false, 1, FAULT_FATAL, NULL);
}

static void test_calls_end_the_task(void)
{
	static const char *const args[] = {"call=task_init", "fatal=task_init"};

	for (int i = 0; i < 2; i++) {
		struct scene s = scene("imports.so", args[i]);
		struct driver d;

		drv_start(&d);
		drv_setup(&d, &s);
		CHECK_INT(drv_init(&d, &s).rc, 0);
		drv_run(&d);
		for (int rank = 0; rank < 2; rank++) {
			CHECK_INT(d.status[rank], (i ? 1 : 127) << 8);
			CHECK_INT(slot(&d, rank)->hook, HOOK_TASK_INIT);
			CHECK_INT(slot(&d, rank)->error,
				  i ? -FAULT_FATAL
				    : -(FAULT_MISSING + number_of(&d, "slurm_update_node")));
		}
		CHECK_INT(slot(&d, -1)->error, 0);
		CHECK_INT(drv_do(&d, CMD_EXIT, NULL, NULL, 0).rc, 0);
		drv_end(&d);
	}
}

/* A helper that a plugin forks ends alone. */
static void test_calls_of_a_helper(void)
{
	struct scene s = scene("imports.so", "helper=init");
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	CHECK_INT(slot(&d, -1)->error, 0);
	char *log = drv_log(&d);
	has(log, "helper ended with 127\n");
	free(log);
	drv_end(&d);
}

/* The host's function comes first, and hands on what is not its own. */
static void test_own_library(void)
{
	struct scene s = scene("own.so", "own=init");
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK(strstr(d.missing, "their_") == NULL);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	char *log = drv_log(&d);
	has(log, "theirs freed 1\n");
	free(log);
	drv_end(&d);
}

static char *job_log(const char *name, const char *missing)
{
	struct scene s = scene(name, NULL);
	struct driver d;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_STR(d.missing, missing);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	char *log = drv_log(&d);
	drv_end(&d);
	return log;
}

static void test_load_job(void)
{
	struct stat st;

	if (stat(plugin("job.so"), &st) != 0) {
		CHECK(getenv("STRICT") == NULL);
		printf("skipped: no Slurm headers to compile a plugin with\n");
		return;
	}
	char *log = job_log("job.so", "");
	has(log, "records 1 job 12 state 1 uid 7001 gid 7001 user someone name a name\n");
	has(log, "nodes node1 batch_host node1 partition debug cluster golden dir / from login1 "
		 "account NULL\n");
	has(log, "num 1 nodes 4 cpus 2 tasks 2 per_task restarts 3 batch 0 mem 8589934592\n");
	has(log, "array 11 6 limit 5a start 1000000 end 1005400 submit 1000000 shared fffe\n");
	has(log, "requeue fffe index -1 bill 1 resources 0\n");
	has(log, "lists gres 0 0 het 0 NULL required NULL -1 excluded NULL -1\n");
	has(log, "load 13: -1 2017 No such job\n");
	free(log);
	log = job_log("job2605.so", "0:slurm_load_job+0 ");
	has(log, "load 12: -1 2036 Not supported here\n");
	free(log);
}

int main(void)
{
	drv_needs_root("abi_test");
	RUN(test_missing_is_told);
	RUN(test_more_than_are_told);
	RUN(test_calls_end_the_host);
	RUN(test_calls_end_the_task);
	RUN(test_calls_of_a_helper);
	RUN(test_own_library);
	RUN(test_load_job);
	return 0;
}
