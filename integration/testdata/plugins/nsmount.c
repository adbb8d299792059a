/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives the step a private file system in init_post_opt, as private-tmpdir and
 * its kind do: nsmount.so DIR. Tasks inherit it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(nsmount, 1)

int slurm_spank_init_post_opt(spank_t sp, int ac, char *av[])
{
	char path[256];

	if (!spank_remote(sp) || ac < 1)
		return 0;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("private", av[0], "tmpfs", MS_NOSUID, "mode=1777") < 0) {
		slurm_error("nsmount: cannot mount on %s: %s", av[0], strerror(errno));
		return -1;
	}
	snprintf(path, sizeof(path), "%s/made-by-plugin", av[0]);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return fd < 0 || close(fd) < 0 ? -1 : 0;
}
