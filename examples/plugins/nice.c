/* SPDX-License-Identifier: Apache-2.0
 *
 * nice.so sets the niceness of a step's tasks.
 *
 *     plugstack.conf:  optional nice.so [nice=N]
 *     users:           stepctl run --nice-task=N ...
 *
 * nice=N, from -20 to 19, is what a task gets whose user did not ask; without
 * it such tasks are left as they are. Users may ask for 0 to 19: to make a task
 * more urgent is root's business, and so allowed in plugstack.conf alone.
 *
 * What this shows to authors of plugins:
 *  - an option and an argument for the same thing, the option winning;
 *  - why task_post_fork is the place: it runs in the step's process as root,
 *    after the fork and before the task's program begins, and knows its pid;
 *  - static data: init, the option's callback and task_post_fork run in one
 *    process, so a variable carries from one to the other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <slurm/spank.h>

SPANK_PLUGIN(nice, 1);

/* Linux: -20 is the most urgent, 19 the kindest. */
enum { NICE_MIN = -20, NICE_MAX = 19 };

static int default_nice;
static int default_set;
static int user_nice;
static int user_set;

/* Reads a whole number between min and max. Anything else is refused: a value
 * that was cut short or wrapped round would be an order that was not given. */
static int parse_int(const char *text, long min, long max, int *out)
{
	char *end;
	long n;

	if (text == NULL || *text == '\0')
		return -1;
	errno = 0;
	n = strtol(text, &end, 10);
	if (errno != 0 || *end != '\0' || n < min || n > max)
		return -1;
	*out = (int)n;
	return 0;
}

/* Called once where the user typed the option (remote 0), and again in the
 * step. The second call may come twice, so it sets and does not add. */
static int on_nice_task(int val, const char *optarg, int remote)
{
	(void)val;
	(void)remote;
	if (parse_int(optarg, 0, NICE_MAX, &user_nice) != 0) {
		slurm_error("nice: --nice-task=%s: want a number from 0 to %d",
			    optarg ? optarg : "", NICE_MAX);
		return -1;
	}
	user_set = 1;
	return 0;
}

static struct spank_option nice_option = {
	.name = "nice-task",
	.arginfo = "N",
	.usage = "run the tasks at niceness N (0 to 19)",
	.has_arg = 1,
	.val = 0,
	.cb = on_nice_task,
};

/* The arguments are the words of our line in plugstack.conf. */
static int parse_args(int ac, char **av)
{
	int i;

	for (i = 0; i < ac; i++) {
		if (strncmp(av[i], "nice=", 5) == 0) {
			if (parse_int(av[i] + 5, NICE_MIN, NICE_MAX, &default_nice) != 0) {
				slurm_error("nice: %s: want a number from %d to %d", av[i],
					    NICE_MIN, NICE_MAX);
				return -1;
			}
			default_set = 1;
			continue;
		}
		slurm_error("nice: %s: unknown argument, want nice=N", av[i]);
		return -1;
	}
	return 0;
}

/* Runs in every context: in the client it must register the option too, or
 * the command line would not know it. */
int slurm_spank_init(spank_t spank, int ac, char **av)
{
	if (parse_args(ac, av) != 0)
		return -1;
	if (spank_option_register(spank, &nice_option) != ESPANK_SUCCESS) {
		/* The argument works without the option. */
		slurm_info("nice: cannot register --nice-task");
	}
	return 0;
}

/* In the step's process, as root, for each task. The task waits meanwhile: no
 * instruction of the user's program runs at the old niceness. */
int slurm_spank_task_post_fork(spank_t spank, int ac, char **av)
{
	pid_t pid = 0;
	int value = user_set ? user_nice : default_nice;

	(void)ac;
	(void)av;
	if (!user_set && !default_set)
		return 0;
	if (spank_get_item(spank, S_TASK_PID, &pid) != ESPANK_SUCCESS) {
		slurm_error("nice: cannot learn the task's pid");
		return -1;
	}
	/* A batch or extern step calls with a task that is none: pid 0 would be
	 * ourselves, and -1 no process. */
	if (pid <= 0)
		return 0;
	if (setpriority(PRIO_PROCESS, (id_t)pid, value) != 0) {
		slurm_error("nice: cannot set niceness %d of process %ld: %s", value, (long)pid,
			    strerror(errno));
		return -1;
	}
	return 0;
}
