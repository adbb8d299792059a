/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin with an option: -DOPTION='"name"' in its table, and one that it
 * registers with -DREGISTERED='"name"'. Arguments: crash, hang, fail in init;
 * open=FILE lets everybody write a file, on the local side. */
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(option, 1)

#ifdef OPTION
struct spank_option spank_options[] = {
	{OPTION, "WHAT", "An option of the table.", 1, 0, NULL},
	SPANK_OPTIONS_TABLE_END,
};
#endif

int slurm_spank_init(spank_t sp, int ac, char *av[])
{
#ifdef REGISTERED
	struct spank_option opt = {REGISTERED, NULL, "A registered option.", 0, 0, NULL};
	spank_option_register(sp, &opt);
#endif
	(void)sp;
	for (int i = 0; i < ac; i++) {
		if (strcmp(av[i], "crash") == 0)
			raise(SIGSEGV);
		while (strcmp(av[i], "hang") == 0)
			pause();
		if (strncmp(av[i], "open=", 5) == 0 && spank_context() == S_CTX_LOCAL)
			chmod(av[i] + 5, 0757);
		if (strcmp(av[i], "fail") == 0)
			return -1;
	}
	return 0;
}
