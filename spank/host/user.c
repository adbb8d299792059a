// SPDX-License-Identifier: Apache-2.0
/* Changing who we are. Every step is checked after it was done: a call that
 * "cannot fail" has launched users' programs as root before (CVE-2019-19728). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

static bool uids_are(uid_t real, uid_t effective, uid_t saved)
{
	uid_t r, e, s;

	return getresuid(&r, &e, &s) == 0 && r == real && e == effective && s == saved;
}

static bool gids_are(gid_t real, gid_t effective, gid_t saved)
{
	gid_t r, e, s;

	return getresgid(&r, &e, &s) == 0 && r == real && e == effective && s == saved;
}

static int by_gid(const void *a, const void *b)
{
	gid_t x = *(const gid_t *)a, y = *(const gid_t *)b;

	return (x > y) - (x < y);
}

/* The kernel keeps them sorted, and the caller need not. */
bool user_groups_are(const gid_t *groups, size_t n)
{
	int count = getgroups(0, NULL);

	if (count < 0 || (size_t)count != n)
		return false;
	_cleanup_free_ gid_t *have = must_zero(n, sizeof(*have));
	_cleanup_free_ gid_t *want = must_zero(n, sizeof(*want));
	if (n > 0)
		memcpy(want, groups, n * sizeof(*want));
	if (getgroups(count, have) != count)
		return false;
	qsort(have, n, sizeof(*have), by_gid);
	qsort(want, n, sizeof(*want), by_gid);
	return memcmp(have, want, n * sizeof(*have)) == 0;
}

/* No capability in effect, nor in reserve; the ambient ones are among these. */
static bool no_capabilities(bool reserve)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}, {0}};

	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	return (data[0].effective | data[1].effective) == 0 &&
	       (!reserve || (data[0].permitted | data[1].permitted) == 0);
}

/* A change of credentials clears the parent-death signal (prctl(2)). Should
 * stepd have died meanwhile, the control channel's end tells. */
void user_rearm(void)
{
	if (host.in_task)
		return; /* tasks outlive the host */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* The user in effect, root in reserve: how user_init is called and how the
 * tasks are forked (Slurm's order: groups and gid while still root). */
bool user_drop(struct host *h, struct outcome *out)
{
	const struct config *c = &h->cfg;

	if (setgroups(c->ngroups, c->groups) < 0 || !user_groups_are(c->groups, c->ngroups))
		return fail(out, errno, "cannot set the %zu groups of user \"%s\"", c->ngroups,
			    c->user);
	if (setegid(c->gid) < 0 || !gids_are(0, c->gid, 0))
		return fail(out, errno, "cannot set effective gid %u", c->gid);
	umask(c->umask);
	if (seteuid(c->uid) < 0 || !uids_are(0, c->uid, 0))
		return fail(out, errno, "cannot set effective uid %u", c->uid);
	if (c->uid != 0 && !no_capabilities(false))
		return fail(out, EPERM, "cannot give up root's capabilities");
	user_rearm();
	guard_remember_user(&host);
	return true;
}

/* Root again. The groups stay the user's, as measured. */
bool user_reclaim(struct outcome *out)
{
	if (seteuid(0) < 0 || !uids_are(0, 0, 0))
		return fail(out, errno, "cannot become root again");
	if (setegid(0) < 0 || !gids_are(0, 0, 0))
		return fail(out, errno, "cannot take gid 0 again");
	user_rearm();
	guard_remember_user(&host);
	return true;
}

/* The user for good. Nothing may be exec'd after false; what and errno say why. */
bool user_become(struct host *h, const char **what)
{
	uid_t uid = h->cfg.uid;
	gid_t gid = h->cfg.gid;

	*what = "cannot enter the job's user namespace";
	if (!container_enter_user(h))
		return false;
	errno = EPERM; /* for checks that set none */
	*what = "cannot set the gid";
	if (setresgid(gid, gid, gid) < 0 || !gids_are(gid, gid, gid))
		return false;
	*what = "cannot set the uid";
	if (setresuid(uid, uid, uid) < 0 || !uids_are(uid, uid, uid))
		return false;
	if (uid != 0) {
		*what = "cannot give up root: it can be taken back";
		if (setuid(0) == 0 || seteuid(0) == 0)
			return false;
		errno = EPERM;
		*what = "cannot give up capabilities";
		if (!no_capabilities(true))
			return false;
	}
	*what = "cannot set no_new_privs";
	if (h->cfg.no_new_privs && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
				    prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1))
		return false;
	return true;
}

/* Links in /proc that stand for what a process has open, or is in, lead a path to what it does
 * not name: into another user's process, or to a pipe of the step's own. */
int user_open(const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (unsigned)(flags | O_CLOEXEC),
		.mode = (flags & O_CREAT) != 0 ? mode : 0,
		.resolve = RESOLVE_NO_MAGICLINKS,
	};

	return (int)RETRY(syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how)));
}

bool user_enter(const char *dir)
{
	_cleanup_close_ int fd = user_open(dir, O_PATH | O_DIRECTORY, 0);

	return fd >= 0 && fchdir(fd) == 0;
}

bool user_chdir(const struct config *c, int *error)
{
	if (user_enter(c->cwd))
		return true;
	*error = errno;
	if (chdir("/tmp") < 0)
		(void)!chdir("/"); /* a directory that the job can neither name nor write to */
	return false;
}

void log_chdir(const struct config *c, int error)
{
	log_text(LEVEL_ERROR, "couldn't chdir to `%s': %s: going to /tmp instead", c->cwd,
		 strerror(error));
}

/* Every disposition default. By the system call itself: glibc keeps its two
 * signals (32 and 33) to itself, and one that was ignored where noded was
 * started would be ignored in every task. */
void signals_default(void)
{
	const struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		unsigned long mask;
	} dfl = {SIG_DFL, 0, NULL, 0};

	for (int sig = 1; sig <= 64; sig++)
		(void)syscall(SYS_rt_sigaction, sig, &dfl, NULL,
			      sizeof(dfl.mask)); /* not for KILL, STOP */
}
