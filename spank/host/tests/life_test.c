// SPDX-License-Identifier: Apache-2.0
/* A plugin's own beginning and end (init(), fini(), dlclose), and how the host ends in a crash of
 * its: a spankhost ($SPANKHOST) with a plugin ($PLUGIN). Needs root. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "test.h"

static const char *plugin;

static void test_board_tells_of_crash(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .plugins = {{plugin, true, {0}}, {plugin, true, {"crash=user_init"}}}};
	struct driver d;
	int status;

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	int fd = blob_memfd(&d.step);
	CHECK_INT(drv_do(&d, CMD_STEP, NULL, &fd, 1).rc, 0);
	close(fd);
	CHECK_STR(drv_do(&d, CMD_USER_INIT, NULL, NULL, 0).what, "gone");
	const struct board_slot *slot = (struct board_slot *)(d.board + 1);
	CHECK_INT(slot->plugin, 1);
	CHECK_INT(slot->hook, HOOK_USER_INIT);
	CHECK(waitpid(d.pid, &status, 0) == d.pid && WTERMSIG(status) == SIGSEGV);
	const struct board_entry *entries = (struct board_entry *)(slot + d.board->nslots);
	CHECK_INT(d.board->next, 10); /* 2 loads, 2 init(), 2 init, 2 init_post_opt, 2 user_init */
	CHECK(entries[8].end_ns >= entries[8].start_ns && entries[8].rc == 0);
	CHECK(entries[9].start_ns > 0 && entries[9].end_ns == 0 && entries[9].plugin == 1);
	char *log = drv_log(&d);
	has(log, "crash rank=-1 signal=11: ");
	has(log, ", called at probe.so+0x"); /* from raise(3) */
	free(log);
	drv_end(&d);
}

static void close_crash(struct blob *b)
{
	blob_tlv_str(b, TAG_HOST_ENV, "CLOSE=1");
}

static void close_thread_crash(struct blob *b)
{
	blob_tlv_str(b, TAG_HOST_ENV, "CLOSE=thread");
}

/* A crash in dlclose has its place as well. Of a thread it has not: ld.so's lock is the closing
 * one's, which waits for it; but the host ends. */
static void test_crash_in_dlclose(void)
{
	for (int thread = 0; thread < 2; thread++) {
		struct scene s = {.ntasks = 1,
				  .argv = {"true"},
				  .plugins = {{plugin, true, {0}}},
				  .config = thread ? close_thread_crash : close_crash};
		struct driver d;
		int status;

		drv_start(&d);
		drv_setup(&d, &s);
		CHECK_INT(drv_init(&d, &s).rc, 0);
		CHECK_STR(drv_do(&d, CMD_EXIT, NULL, NULL, 0).what, "gone");
		CHECK(waitpid(d.pid, &status, 0) == d.pid && WTERMSIG(status) == SIGSEGV);
		char *log = drv_log(&d);
		if (!thread)
			has(log, ", called at probe.so+0x");
		free(log);
		drv_end(&d);
	}
}

static void live(struct blob *b)
{
	blob_tlv_str(b, TAG_HOST_ENV, "LIFE=0");
}

static void refuse(struct blob *b)
{
	blob_tlv_str(b, TAG_HOST_ENV, "LIFE=3");
}

static void test_life_of_a_plugin(void)
{
	struct scene s = {.ntasks = 1,
			  .argv = {"true"},
			  .env = {PATH_ENV},
			  .plugins = {{plugin, true, {0}}, {plugin, false, {0}}},
			  .config = live};
	char *log;
	int status;

	free(drv_step(&s, &log, &status));
	has(log, "plugin=0: init() in context 0\n");
	has(log, "plugin=1: init() in context 0\n");
	has(log, "plugin=0: fini() in context 2\n");
	has(log, "plugin=1: fini() in context 2\n");
	free(log);
}

/* An optional plugin is out of the stack, a required one ends it; neither has fini(). */
static void test_init_refuses(void)
{
	for (int required = 0; required < 2; required++) {
		struct scene s = {.ntasks = 1,
				  .argv = {"true"},
				  .plugins = {{plugin, required != 0, {0}}},
				  .config = refuse};
		struct driver d;

		drv_start(&d);
		drv_setup(&d, &s);
		d.refused = -1;
		struct done done = drv_init(&d, &s);
		CHECK_INT(done.rc, required ? 3 : 0);
		CHECK(!required || done.hook == HOOK_BEGIN);
		CHECK_INT(d.refused, 0);
		CHECK_INT(d.refused_rc, 3);
		CHECK_INT(drv_do(&d, CMD_EXIT, NULL, NULL, 0).rc, 0);
		CHECK_STR(drv_replies(&d).what, "gone");
		char *log = drv_log(&d);
		has(log, "init() in context 0\n");
		has_not(log, "fini()");
		has_not(log, ": init uid");
		free(log);
		drv_end(&d);
	}
}

int main(void)
{
	plugin = getenv("PLUGIN");
	CHECK(plugin != NULL);
	drv_needs_root("life_test");
	RUN(test_board_tells_of_crash);
	RUN(test_crash_in_dlclose);
	RUN(test_life_of_a_plugin);
	RUN(test_init_refuses);
	return 0;
}
