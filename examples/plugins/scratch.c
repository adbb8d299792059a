/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.so gives a job a directory on the node's own disk.
 *
 *     plugstack.conf:  required scratch.so base=DIR [max=GB]
 *     users:           stepctl run|alloc|batch --scratch=GB ...
 *
 * It makes base/JOB before the job's first step, gives every task its name in
 * SCRATCH_DIR, and removes it after the last step. Prolog and Epilog get
 * SPANK_SCRATCH_GB, to set a quota by. base must exist and belong to root.
 *
 * One file is loaded in five places (contexts), each a process of its own, so
 * that nothing which one of them keeps in a variable is seen by another:
 *
 *     local        stepctl run, as the user: checks what was typed
 *     allocator    stepctl alloc and batch, as the user: the same
 *     slurmd       noded, as root: nothing to do here
 *     remote       each step, as root and as the user: sets the tasks' variable
 *     job_script   before and after the job, as root: makes and removes
 *
 * The option carries the value between them: what was given on the local side is
 * carried to the others. In job_script slurm_spank_init is not called, and
 * spank_option_getopt is the way to it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(scratch, 1);

static const char *base;
static long max_gb = 100;
static long given_gb; /* 0: the option was not given */

static int on_scratch(int val, const char *optarg, int remote);

static struct spank_option scratch_option = {
	.name = "scratch",
	.arginfo = "GB",
	.usage = "a directory of that size on the node's disk, named by SCRATCH_DIR",
	.has_arg = 1,
	.val = 0,
	.cb = on_scratch,
};

/* A whole number from 1 to max, else -1. */
static long parse_gb(const char *text, long max)
{
	char *end;
	long n;

	if (text == NULL || *text < '0' || *text > '9')
		return -1;
	errno = 0;
	n = strtol(text, &end, 10);
	return errno == 0 && *end == '\0' && n >= 1 && n <= max ? n : -1;
}

/* The words behind the path in plugstack.conf: the same in every context, and
 * handed to every hook. */
static int parse_args(int ac, char **av)
{
	int i;

	for (i = 0; i < ac; i++) {
		if (strncmp(av[i], "base=/", 6) == 0) {
			base = av[i] + 5;
		} else if (strncmp(av[i], "max=", 4) == 0 && parse_gb(av[i] + 4, 1 << 20) > 0) {
			max_gb = parse_gb(av[i] + 4, 1 << 20);
		} else {
			slurm_error("scratch: %s: want base=DIR and max=GB", av[i]);
			return -1;
		}
	}
	if (base == NULL) {
		slurm_error("scratch: base=DIR is missing");
		return -1;
	}
	return 0;
}

/* Called when the option is taken: in the client with remote 0, where a value
 * that is no good ends the command before anything was asked of the node, and in
 * each step with remote 1, once or twice. */
static int on_scratch(int val, const char *optarg, int remote)
{
	(void)val;
	if (parse_gb(optarg, max_gb) < 0) {
		slurm_error("scratch: --scratch=%s: want a number from 1 to %ld",
			    optarg ? optarg : "", max_gb);
		return -1;
	}
	given_gb = parse_gb(optarg, max_gb); /* set, not added to: it may come twice */
	slurm_debug("scratch: %s GB, told on the %s side", optarg, remote ? "remote" : "local");
	return 0;
}

/* local, allocator, remote, slurmd. An option must be registered wherever it is
 * to be known. */
int slurm_spank_init(spank_t spank, int ac, char **av)
{
	spank_err_t err;

	if (parse_args(ac, av) != 0)
		return -1;
	if (spank_context() == S_CTX_SLURMD)
		return 0; /* there are no jobs and no options; failing would stop the daemon */
	err = spank_option_register(spank, &scratch_option);
	if (err != ESPANK_SUCCESS) {
		slurm_error("scratch: cannot offer --scratch: %s", spank_strerror(err));
		return -1;
	}
	return 0;
}

/* local, allocator, remote. The callback has run. What is set here on the local
 * side, Prolog and Epilog get, with SPANK_ before the name; in Slurm what init sets
 * does not arrive with srun, so here is the place. */
int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	char gb[32];
	spank_err_t err;

	(void)ac;
	(void)av;
	if (spank_remote(spank) == 1 || given_gb == 0)
		return 0;
	snprintf(gb, sizeof(gb), "%ld", given_gb);
	err = spank_job_control_setenv(spank, "SCRATCH_GB", gb, 1);
	if (err != ESPANK_SUCCESS) {
		slurm_error("scratch: cannot tell the prolog: %s", spank_strerror(err));
		return -1;
	}
	return 0;
}

/* The directory's name, in buf: 1. 0 where the user did not ask for one, -1 where
 * that cannot be learnt. spank_option_getopt serves the hooks that belong to a job
 * or to a task, in job_script as well. */
static int job_dir(spank_t spank, char *buf, size_t size)
{
	uint32_t job = 0;
	char *gb = NULL;
	spank_err_t err = spank_option_getopt(spank, &scratch_option, &gb);

	if (err == ESPANK_ERROR)
		return 0; /* not given */
	if (err == ESPANK_SUCCESS)
		err = spank_get_item(spank, S_JOB_ID, &job);
	if (err != ESPANK_SUCCESS) {
		slurm_error("scratch: cannot learn the job and its option: %s",
			    spank_strerror(err));
		return -1;
	}
	snprintf(buf, size, "%lu", (unsigned long)job);
	return 1;
}

/* Opens base, if only root can have put anything there. */
static int open_base(void)
{
	struct stat st;
	int fd = open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) != 0) {
		slurm_error("scratch: cannot open base=%s: %s", base, strerror(errno));
	} else if (st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
		slurm_error(
			"scratch: base=%s: must belong to root, and no other user may write there",
			base);
	} else {
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Makes the directory and gives it to the user. An old one of that name is not
 * his, and is refused. */
static int make_dir(int at, const char *name, uid_t uid, gid_t gid)
{
	int fd;

	if (mkdirat(at, name, 0700) != 0) {
		slurm_error("scratch: cannot make %s/%s: %s", base, name, strerror(errno));
		return -1;
	}
	fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fchown(fd, uid, gid) != 0) {
		slurm_error("scratch: cannot give %s/%s to uid %ld: %s", base, name, (long)uid,
			    strerror(errno));
		if (fd >= 0)
			close(fd);
		(void)unlinkat(at, name, AT_REMOVEDIR);
		return -1;
	}
	close(fd);
	return 0;
}

/* job_script, as root, before Prolog. init was not called here. A value other than 0
 * of a required plugin drains the node, so what is the user's mistake must not
 * come this far. */
int slurm_spank_job_prolog(spank_t spank, int ac, char **av)
{
	char name[32];
	uid_t uid;
	gid_t gid;
	int at, rc;

	if (parse_args(ac, av) != 0)
		return -1;
	rc = job_dir(spank, name, sizeof(name));
	if (rc <= 0)
		return rc;
	if (spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_GID, &gid) != ESPANK_SUCCESS) {
		slurm_error("scratch: cannot learn the job's user");
		return -1;
	}
	at = open_base();
	if (at < 0)
		return -1;
	rc = make_dir(at, name, uid, gid);
	if (rc == 0)
		slurm_info("scratch: made %s/%s", base, name);
	close(at);
	return rc;
}

/* remote, in the step's process, with the user's rights and in the job's
 * directory. Messages reach the user from here to task_exit. */
int slurm_spank_user_init(spank_t spank, int ac, char **av)
{
	char name[32], path[4096];
	int rc = job_dir(spank, name, sizeof(name));

	(void)ac;
	(void)av;
	if (rc <= 0)
		return rc;
	snprintf(path, sizeof(path), "%s/%s", base, name);
	if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0) {
		slurm_error("scratch: cannot use %s: %s", path, strerror(errno));
		return -1;
	}
	/* spank_setenv is for the tasks; setenv(3) would be for this process. */
	if (spank_setenv(spank, "SCRATCH_DIR", path, 1) != ESPANK_SUCCESS) {
		slurm_error("scratch: cannot set SCRATCH_DIR");
		return -1;
	}
	slurm_verbose("scratch: the tasks have %s", path);
	return 0;
}

/* Removes what the user has left. rm(1) follows no links and enters no mount; its
 * environment is empty. */
static int remove_dir(int at, char *name)
{
	char *const argv[] = {"rm", "-rf", "--one-file-system", "--", name, NULL};
	char *const envp[] = {NULL};
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		if (fchdir(at) == 0)
			execve("/bin/rm", argv, envp);
		_exit(127);
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid > 0 && status == 0)
		return 0;
	slurm_error("scratch: cannot remove %s/%s: %s", base, name,
		    pid < 0 ? strerror(errno) : "see what is mounted there");
	return -1;
}

/* job_script, as root, after the last step. */
int slurm_spank_job_epilog(spank_t spank, int ac, char **av)
{
	char name[32];
	int at, rc;

	if (parse_args(ac, av) != 0)
		return -1;
	rc = job_dir(spank, name, sizeof(name));
	if (rc <= 0)
		return rc;
	at = open_base();
	if (at < 0)
		return -1;
	rc = remove_dir(at, name);
	close(at);
	return rc;
}
