// SPDX-License-Identifier: Apache-2.0
/* spankhost --init: process 1 of a job's pid namespace, which lasts as long as it.
 * noded has made it there, its end of a socket at descriptor 0. It sends the /proc of
 * the namespace, which only a process in it can make, and stays on command:
 * noded's end before that is its own. */
#define _GNU_SOURCE
#include <linux/mount.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

#ifndef MOUNT_ATTR_NOSUID
#define MOUNT_ATTR_NOSUID 0x2
#define MOUNT_ATTR_NODEV  0x4
#define MOUNT_ATTR_NOEXEC 0x8
#endif

/* A mount of proc that is attached nowhere, -1 with errno. */
static int new_proc(void)
{
	const int flags = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
	_cleanup_close_ int fs = (int)syscall(SYS_fsopen, "proc", 1 /* FSOPEN_CLOEXEC */);

	if (fs < 0 || syscall(SYS_fsconfig, fs, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) < 0)
		return -1;
	return (int)syscall(SYS_fsmount, fs, 1 /* FSMOUNT_CLOEXEC */, flags);
}

static int failed(const char *what)
{
	dprintf(2, "cannot %s: %m\n", what);
	return 1;
}

int init_main(void)
{
	/* Orphans of the job come here: the kernel reaps them. */
	const struct sigaction reap = {.sa_handler = SIG_IGN, .sa_flags = SA_NOCLDWAIT};
	char word = 1;
	struct iovec iov = {&word, 1};

	(void)prctl(PR_SET_NAME, "stepd-init");
	(void)prctl(PR_SET_DUMPABLE, 0);
	if (sigaction(SIGCHLD, &reap, NULL) < 0 || chdir("/") < 0)
		return failed("begin as process 1 of a pid namespace");
	int proc = new_proc();
	if (proc < 0)
		return failed("make the /proc of a pid namespace");
	if (packet_send(0, &iov, 1, &proc, 1) < 0)
		return failed("send the /proc of a pid namespace");
	close(proc);
	if (RETRY(read(0, &word, 1)) != 1)
		return 1;
	(void)close_range(0, ~0u, 0);
	for (;;)
		pause();
}
