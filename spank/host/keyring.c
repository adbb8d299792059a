// SPDX-License-Identifier: Apache-2.0
/* Session keyrings (session-keyring(7)): a process has its parent's, with the keys of the
 * administrator who has started the daemon, or of another step. */
#define _GNU_SOURCE
#include <linux/keyctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* A kernel has no keys, or a container keeps them away: then no task sees any. */
static bool no_keys(int error)
{
	return error == ENOSYS || error == EPERM || error == EACCES || error == EOPNOTSUPP;
}

bool keyring_join(struct outcome *out)
{
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && !no_keys(errno))
		return fail(out, errno, "cannot join a session keyring of the step's own");
	return true;
}

/* The kernel means the real uid by "user". Without it the keys that are the user's on all of the
 * machine would not be found by request_key(2); the rest of the task needs none of it. */
void keyring_link_user(void)
{
	(void)syscall(SYS_keyctl, KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_SESSION_KEYRING);
}
