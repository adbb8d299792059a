/* SPDX-License-Identifier: Apache-2.0
 *
 * privdir.so gives each step a directory of its own at a fixed place.
 *
 *     plugstack.conf:  required privdir.so base=/local/privdir target=/mnt/private
 *
 * Every task of the step sees an empty directory at target, which belongs to
 * the user, is closed to all others and is removed when the step ends. It is
 * base/JOB.STEP. base and target must exist; base belongs to root and no
 * other user may write there.
 *
 * What this shows to authors of plugins:
 *  - init_post_opt is the place for what all tasks shall inherit: the process
 *    that calls it forks them, so a mount namespace made here is theirs;
 *  - it runs in the client as well: ask spank_remote first;
 *  - a hook that fails cleans up after itself, for `exit' is not called then;
 *  - root never trusts a name below a directory that a user can write to.
 *
 * Two things to know. With a job container that each task joins on its own
 * (job_container/tmpfs without EntireStepInNS=true), the task leaves this
 * namespace and the mount is not seen. And if the node loses power, `exit' is
 * not called: base/JOB.* may be removed by an epilog.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(privdir, 1);

/* The arguments; they live as long as the process. */
static const char *base;
static const char *target;

/* What init_post_opt made, for exit. */
static int base_fd = -1;
static char name[32]; /* JOB.STEP below base; empty: nothing was made */

/* An absolute path without "..", which is not the root. */
static int good_path(const char *p)
{
	return p[0] == '/' && p[1] != '\0' && strstr(p, "/../") == NULL &&
	       (strlen(p) < 3 || strcmp(p + strlen(p) - 3, "/..") != 0);
}

static int parse_args(int ac, char **av)
{
	int i;

	for (i = 0; i < ac; i++) {
		if (strncmp(av[i], "base=", 5) == 0 && good_path(av[i] + 5)) {
			base = av[i] + 5;
		} else if (strncmp(av[i], "target=", 7) == 0 && good_path(av[i] + 7)) {
			target = av[i] + 7;
		} else {
			slurm_error("privdir: %s: want base=DIR and target=DIR, absolute paths",
				    av[i]);
			return -1;
		}
	}
	if (base == NULL || target == NULL) {
		slurm_error("privdir: base=DIR and target=DIR are both needed");
		return -1;
	}
	if (strncmp(base, target, strlen(target)) == 0 &&
	    (base[strlen(target)] == '/' || base[strlen(target)] == '\0')) {
		slurm_error("privdir: base=%s lies in target=%s, which covers it", base, target);
		return -1;
	}
	return 0;
}

/* What is mounted from here on is for this process and its children alone.
 * Slave, not private: mounts that the node makes later still come in, which
 * automounted homes need, and none of ours goes out. */
static int leave_mount_namespace(void)
{
	if (unshare(CLONE_NEWNS) != 0) {
		slurm_error("privdir: cannot make a mount namespace: %s", strerror(errno));
		return -1;
	}
	if (mount("", "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) {
		slurm_error("privdir: cannot keep mounts from the node: %s", strerror(errno));
		return -1;
	}
	return 0;
}

/* Opens base, if only root can have put anything there: else a user might have
 * made base/JOB.STEP before us, as a link to a directory of his choice. */
static int open_base(void)
{
	struct stat st;

	base_fd = open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (base_fd < 0 || fstat(base_fd, &st) != 0) {
		slurm_error("privdir: cannot open base=%s: %s", base, strerror(errno));
		return -1;
	}
	if (st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
		slurm_error("privdir: base=%s: must belong to root, and no other user may write "
			    "there (uid %ld, mode %#o)",
			    base, (long)st.st_uid, (unsigned)st.st_mode & 07777);
		return -1;
	}
	return 0;
}

/* Makes the directory and gives it to the user. */
static int make_dir(uid_t uid, gid_t gid)
{
	int fd;

	if (mkdirat(base_fd, name, 0700) != 0) {
		slurm_error("privdir: cannot make %s/%s: %s", base, name, strerror(errno));
		name[0] = '\0'; /* not ours to remove */
		return -1;
	}
	fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fchmod(fd, 0700) != 0 || fchown(fd, uid, gid) != 0) {
		slurm_error("privdir: cannot give %s/%s to uid %ld: %s", base, name, (long)uid,
			    strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

/* Mounts the directory over target. Both ends are named by descriptors: what
 * was checked is what is mounted. */
static int cover_target(int dir_fd)
{
	char from[32], to[32];
	int fd, rc;

	fd = open(target, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		slurm_error("privdir: cannot open target=%s: %s", target, strerror(errno));
		return -1;
	}
	snprintf(from, sizeof(from), "/proc/self/fd/%d", dir_fd);
	snprintf(to, sizeof(to), "/proc/self/fd/%d", fd);
	rc = mount(from, to, NULL, MS_BIND, NULL);
	/* A bind mount takes its flags in a second step; by path now, since the
	 * descriptor names what lies underneath. */
	if (rc == 0 &&
	    mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL) != 0) {
		rc = -1;
		umount2(target, MNT_DETACH | UMOUNT_NOFOLLOW);
	}
	if (rc != 0)
		slurm_error("privdir: cannot mount %s/%s on %s: %s", base, name, target,
			    strerror(errno));
	close(fd);
	return rc;
}

/* Removes the directory with all that the user made in it. rm(1) follows no
 * links, handles any depth and any name, and enters no mount; its environment
 * is empty, since a user's must not reach a program of root's. */
static void remove_dir(void)
{
	char *const argv[] = {"rm", "-rf", "--one-file-system", "--", name, NULL};
	char *const envp[] = {NULL};
	int status = 0;
	pid_t pid;

	if (name[0] != '\0') {
		pid = fork();
		if (pid == 0) {
			if (fchdir(base_fd) == 0)
				execve("/bin/rm", argv, envp);
			_exit(127);
		}
		while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (pid < 0 || status != 0)
			slurm_error("privdir: cannot remove %s/%s: %s", base, name,
				    pid < 0 ? strerror(errno) : "see what is mounted there");
	}
	name[0] = '\0';
	if (base_fd >= 0)
		close(base_fd);
	base_fd = -1;
}

/* In the step's process, as root, before anything of the user's. */
int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	uint32_t job = 0, step = 0;
	uid_t uid = 0;
	gid_t gid = 0;
	int fd, rc;

	if (spank_remote(spank) != 1)
		return 0;
	if (parse_args(ac, av) != 0)
		return -1;
	if (spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_GID, &gid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS) {
		slurm_error("privdir: cannot learn the step's user and id");
		return -1;
	}
	/* The namespace first: a descriptor that was opened in another one
	 * cannot be mounted here. */
	if (leave_mount_namespace() != 0)
		return -1;
	snprintf(name, sizeof(name), "%lu.%lu", (unsigned long)job, (unsigned long)step);
	fd = open_base() == 0 ? make_dir(uid, gid) : (name[0] = '\0', -1);
	rc = fd >= 0 ? cover_target(fd) : -1;
	if (fd >= 0)
		close(fd);
	if (rc != 0)
		remove_dir();
	return rc;
}

/* In the step's process, as root, when all tasks have ended; also in the
 * client, where nothing was made. */
int slurm_spank_exit(spank_t spank, int ac, char **av)
{
	(void)spank;
	(void)ac;
	(void)av;
	if (name[0] == '\0')
		return 0;
	if (umount2(target, MNT_DETACH | UMOUNT_NOFOLLOW) != 0)
		slurm_error("privdir: cannot unmount %s: %s", target, strerror(errno));
	remove_dir();
	return 0;
}
