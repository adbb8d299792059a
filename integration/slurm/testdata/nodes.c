// A plugin that shows each node of a step: the file where.HOOK.NODE of the job's folder has
// what it knows in a hook, and --mark=WORD is in it.
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>

SPANK_PLUGIN(nodes, 1)

static char mark[64] = "none";

static int marked(int value, const char *word, int remote)
{
	(void)value, (void)remote;
	snprintf(mark, sizeof mark, "%s", word);
	return 0;
}

static struct spank_option option = {"mark", "WORD", "a word for every node", 1, 0, marked};

static void tell(spank_t sp, const char *hook)
{
	uint32_t node = 0, nodes = 0, tasks = 0, here = 0;
	char wd[4096], path[5000];

	spank_get_item(sp, S_JOB_NODEID, &node);
	spank_get_item(sp, S_JOB_NNODES, &nodes);
	spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &tasks);
	spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &here);
	if (spank_getenv(sp, "WHERE", wd, sizeof wd) != ESPANK_SUCCESS)
		return;
	snprintf(path, sizeof path, "%s/where.%s.%u", wd, hook, node);
	FILE *f = fopen(path, "a");
	if (!f)
		return;
	fprintf(f, "%s on %u of %u: %u of %u tasks, mark %s\n", hook, node, nodes, here, tasks,
		mark);
	fclose(f);
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	return spank_option_register(sp, &option);
}

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	tell(sp, "user_init");
	return 0;
}

int slurm_spank_task_exit(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	tell(sp, "task_exit");
	return 0;
}

int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	if (spank_remote(sp))
		tell(sp, "exit");
	return 0;
}
