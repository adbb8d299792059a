/* SPDX-License-Identifier: Apache-2.0
 *
 * Misbehaves on the remote side, not in a hook: built with -DLOADED='"WHAT"' when
 * it is loaded, with -DOPTION='"WHAT"' when its option --early is called back.
 * WHAT is one of misdeeds.h.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "misdeeds.h"

SPANK_PLUGIN(early, 1)

#ifdef LOADED
/* The context is not known yet; the title of a step's host begins with the job's number. */
__attribute__((constructor)) static void loaded(void)
{
	char title[64] = "", step[2];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

	if (read(fd, title, sizeof(title) - 1) < 0)
		title[0] = 0;
	close(fd);
	if (sscanf(title, "spankhost: [%1[0-9]", step) == 1)
		misbehave(LOADED, NULL, 0, NULL);
}
#endif

static int given(int val, const char *optarg, int remote)
{
	(void)val;
	(void)optarg;
#ifdef OPTION
	if (remote)
		misbehave(OPTION, NULL, 0, NULL);
#endif
	return remote < 0;
}

int slurm_spank_init(spank_t sp, int ac, char *av[])
{
	struct spank_option early = {(char *)"early", NULL, (char *)"a test", 0, 0, given};

	(void)ac;
	(void)av;
	(void)option; /* of misdeeds.h */
	return spank_option_register(sp, &early) == ESPANK_SUCCESS ? 0 : -1;
}
