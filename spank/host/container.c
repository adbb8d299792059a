// SPDX-License-Identifier: Apache-2.0
/* The job's container: the one place where a process that acts for the step enters
 * what the job sees of the node. The mount namespace is entered by each process
 * that resolves the job's paths; the user namespace by each that becomes the user, after
 * the last that needs root's rights outside of it; a pid namespace by none, but children
 * are born in it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

bool container_take(struct host *h, const int *fds, size_t n, struct outcome *out)
{
	for (size_t i = 0; i < n; i++) {
		int *at = NULL;

		switch (ioctl(fds[i], NS_GET_NSTYPE)) {
		case CLONE_NEWNS:
			at = &h->job_ns;
			break;
		case CLONE_NEWPID:
			at = &h->pid_ns;
			break;
		case CLONE_NEWUSER:
			at = &h->user_ns;
			break;
		}
		if (at == NULL || *at >= 0)
			return fail(out, EBADF,
				    "cannot use the job's container: descriptor %d is not a "
				    "namespace, or one too many",
				    fds[i]);
		*at = fds[i];
	}
	if (h->pid_ns < 0)
		return true;
	h->own_pid_ns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	return h->own_pid_ns >= 0 || fail(out, errno, "cannot open \"/proc/self/ns/pid\"");
}

bool container_enter(struct host *h, uint32_t who)
{
	return h->cfg.join_ns != who || setns(h->job_ns, CLONE_NEWNS) == 0;
}

bool container_enter_user(struct host *h)
{
	return h->user_ns < 0 || setns(h->user_ns, CLONE_NEWUSER) == 0;
}

bool container_births(struct host *h, bool inside)
{
	uid_t euid = geteuid();

	if (h->pid_ns < 0)
		return true;
	/* The tasks are forked with the user's rights, and this needs root's. */
	if (euid != 0 && seteuid(0) < 0)
		return false;
	bool ok = setns(inside ? h->pid_ns : h->own_pid_ns, CLONE_NEWPID) == 0;
	int error = errno;
	if (euid != 0 && seteuid(euid) < 0)
		return false;
	if (euid != 0)
		user_rearm();
	errno = error;
	return ok;
}
