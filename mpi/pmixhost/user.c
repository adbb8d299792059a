// SPDX-License-Identifier: Apache-2.0
/* Becoming the step's user. Every step is checked after it was done: a call that
 * "cannot fail" has launched users' programs as root before (CVE-2019-19728). */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"
#include "protocol.h"

static int by_gid(const void *a, const void *b)
{
	gid_t x = *(const gid_t *)a, y = *(const gid_t *)b;

	return (x > y) - (x < y);
}

/* The kernel keeps them sorted, and stepd need not. */
static bool groups_are(const gid_t *groups, size_t n)
{
	int count = getgroups(0, NULL);
	gid_t *have, *want;
	bool same;

	if (count < 0 || (size_t)count != n)
		return false;
	if (n == 0)
		return true;
	have = must(calloc(n, sizeof(*have)));
	want = must(calloc(n, sizeof(*want)));
	memcpy(want, groups, n * sizeof(*want));
	same = getgroups(count, have) == count;
	qsort(have, n, sizeof(*have), by_gid);
	qsort(want, n, sizeof(*want), by_gid);
	same = same && memcmp(have, want, n * sizeof(*have)) == 0;
	free(have);
	free(want);
	return same;
}

static bool ids_are(uid_t uid, gid_t gid)
{
	uid_t r, e, s;
	gid_t rg, eg, sg;

	return getresuid(&r, &e, &s) == 0 && r == uid && e == uid && s == uid &&
	       getresgid(&rg, &eg, &sg) == 0 && rg == gid && eg == gid && sg == gid;
}

/* No capability in effect or in reserve; the ambient ones are among them. */
static bool no_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}, {0}};

	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	return (data[0].effective | data[0].permitted | data[1].effective | data[1].permitted) == 0;
}

/* One descriptor per rank and tool; no core, which would hold the job's keys. */
static bool set_limits(const struct user *u, const char **what)
{
	struct rlimit files, none = {0, 0}, data = {u->data_limit, u->data_limit};

	*what = "cannot set the limit of open files";
	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		return false;
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		return false;
	*what = "cannot forbid core dumps";
	if (setrlimit(RLIMIT_CORE, &none) < 0)
		return false;
	*what = "cannot limit memory (RLIMIT_DATA)";
	return u->data_limit == 0 || setrlimit(RLIMIT_DATA, &data) == 0;
}

bool user_become(const struct user *u, bool join, const char **what)
{
	if (!set_limits(u, what))
		return false;
	*what = "cannot join the job's mount namespace";
	if (join && setns(PMIXHOST_FD_NAMESPACE, CLONE_NEWNS) < 0)
		return false;
	if (join)
		close(PMIXHOST_FD_NAMESPACE);
	*what = "cannot change directory to /";
	if (chdir("/") < 0)
		return false;
	umask(077);
	errno = EPERM; /* for checks that set none */
	*what = "cannot set the groups";
	if (setgroups(u->ngroups, u->groups) < 0 || !groups_are(u->groups, u->ngroups))
		return false;
	*what = "cannot become the user";
	if (setresgid(u->gid, u->gid, u->gid) < 0 || setresuid(u->uid, u->uid, u->uid) < 0 ||
	    !ids_are(u->uid, u->gid))
		return false;
	if (u->uid != 0) {
		*what = "cannot give up root: it can be taken back";
		if (setuid(0) == 0 || seteuid(0) == 0)
			return false;
		errno = EPERM;
		*what = "cannot give up capabilities";
		if (!no_capabilities())
			return false;
	}
	*what = "cannot set no_new_privs";
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
		return false;
	/* The tasks are the same user's, and must not get out of their cgroup by
	 * attaching to us. */
	*what = "cannot forbid ptrace";
	return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 && prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0;
}
