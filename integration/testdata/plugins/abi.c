/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that is compiled with the headers of an installed Slurm and uses what
 * they offer beyond spank.h. hook=NAME says where, do=WHAT what; context=N in
 * which context, if not in the remote one. -DDATA imports a
 * variable that no library has.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(abi, 1)

/* Slurm's own, which plugins of its kind declare themselves or not at all. */
void debug(const char *format, ...);
void slurm_fatal(const char *format, ...);
char *slurm_job_state_string(uint32_t state);
char *slurm_xstrdup(const char *s);
void slurm_xfree(void **item);

#ifdef DATA
extern int no_such_data_xyz;
int *use_data = &no_such_data_xyz;
#endif

static const char *argument(int ac, char **av, const char *name)
{
	size_t n = strlen(name);
	for (int i = 0; i < ac; i++)
		if (strncmp(av[i], name, n) == 0 && av[i][n] == '=')
			return av[i] + n + 1;
	return "";
}

/* The base name of the file that a function comes from. */
static const char *home_of(void *function)
{
	Dl_info info;
	if (!dladdr(function, &info) || info.dli_fname == NULL)
		return "nowhere";
	const char *slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

static int use_hostlist(void)
{
	hostlist_t hl = slurm_hostlist_create("n[1-3,07-09],m4,n2");
	char *first = slurm_hostlist_shift(hl), buf[64];
	int n = slurm_hostlist_count(hl), pushed = slurm_hostlist_push(hl, "z[1-2]");

	slurm_hostlist_uniq(hl);
	if (slurm_hostlist_ranged_string(hl, sizeof(buf), buf) < 0)
		return -1;
	char *text = slurm_hostlist_ranged_string_malloc(hl);
	slurm_spank_log("hostlist %s %d %d %s %s %d %s", first, n, pushed, buf, text,
			slurm_hostlist_find(hl, "m4"),
			slurm_hostlist_create("n[3-1]") ? "list" : "none");
	free(first);
	free(text);
	slurm_hostlist_destroy(hl);
	return 0;
}

/* As the plugins for X11 and tunnels: which nodes has my job? */
static int use_job(spank_t sp)
{
	job_info_msg_t *msg = NULL;
	uint32_t id = 0;

	spank_get_item(sp, S_JOB_ID, &id);
	if (slurm_load_job(&msg, id, SHOW_ALL) != 0) {
		slurm_spank_log("job %s", slurm_strerror(slurm_get_errno()));
		return 0;
	}
	job_info_t *job = msg->job_array;
	hostlist_t hl = slurm_hostlist_create(job->nodes);
	char *first = slurm_hostlist_shift(hl);
	slurm_spank_log("job %d state %d uid %u name %s first %s of %u batch %s in %s of %s at %s",
			job->job_id == id, job->job_state, job->user_id, job->name, first,
			job->num_nodes, job->batch_host, job->partition, job->cluster,
			job->work_dir);
	free(first);
	slurm_hostlist_destroy(hl);
	slurm_free_job_info_msg(msg);
	int rc = slurm_load_job(&msg, id + 1, SHOW_ALL);
	slurm_spank_log("other job %d %s", rc, slurm_strerror(slurm_get_errno()));
	return 0;
}

/* Through the functions of a libslurm of our own, too. */
static int use_own(spank_t sp)
{
	char *(*state)(uint32_t) = NULL;
	char buf[64] = "";

	spank_getenv(sp, "SLURM_JOB_ID", buf, sizeof(buf));
#ifdef OWN
	state = slurm_job_state_string;
	/* Memory of libslurm's, which the host's xfree takes. */
	void *copy = slurm_xstrdup("a copy");
	slurm_xfree(&copy);
#endif
	slurm_spank_log("own %s %s %s %s", state ? state(JOB_RUNNING) : "none",
			state ? home_of((void *)state) : "none",
			home_of((void *)slurm_hostlist_create), buf[0] ? "env" : "no env");
	return use_hostlist();
}

static int visit(const char *hook, spank_t sp, int ac, char **av)
{
	const char *what = argument(ac, av, "do"), *context = argument(ac, av, "context");

	if ((int)spank_context() != (context[0] ? atoi(context) : S_CTX_REMOTE) ||
	    strcmp(argument(ac, av, "hook"), hook) != 0)
		return 0;
	if (strcmp(what, "hostlist") == 0)
		return use_hostlist();
	if (strcmp(what, "job") == 0)
		return use_job(sp);
	if (strcmp(what, "own") == 0)
		return use_own(sp);
	if (strcmp(what, "fatal") == 0)
		slurm_fatal("abi: %s", "no way");
	if (strcmp(what, "missing") == 0)
		return slurm_update_node(NULL);
	if (strcmp(what, "debug") == 0)
		debug("abi: %s", "for the log");
	return 0;
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		return visit(#name, sp, ac, av);                                                   \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)
