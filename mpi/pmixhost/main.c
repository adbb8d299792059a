// SPDX-License-Identifier: Apache-2.0
/*
 * pmixhost: the PMIx server of a step on one node, on the system's libpmix. stepd
 * starts it and decides (protocol.h); it runs as the step's user, without
 * privileges, since libpmix has had holes that gave root away (CVE-2023-41915).
 *
 *	pmixhost		the server, its channel at descriptor 3
 *	pmixhost --version
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <unistd.h>

#include "host.h"
#include "protocol.h"

#ifndef STEPD_VERSION
#define STEPD_VERSION "unreleased"
#endif

static bool is_channel(void)
{
	int type = 0;
	socklen_t len = sizeof(type);

	return getsockopt(PMIXHOST_FD_CONTROL, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
	       type == SOCK_STREAM && fcntl(PMIXHOST_FD_CONTROL, F_SETFD, FD_CLOEXEC) == 0;
}

int main(int argc, char **argv)
{
	struct frame f;

	if (argc == 2 && strcmp(argv[1], "--version") == 0) {
		printf("pmixhost %s (%s)\n", STEPD_VERSION, PMIx_Get_version());
		return 0;
	}
	/* Before anything else: no process of the user's is to attach to us while we
	 * are root, or after that (user.c). */
	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	(void)prctl(PR_SET_NAME, "pmixhost");
	if (!is_channel()) {
		dprintf(2,
			"pmixhost: descriptor %d must be a socket: this program is run by stepd\n",
			PMIXHOST_FD_CONTROL);
		return 1;
	}
	(void)signal(SIGPIPE, SIG_IGN);
	while (channel_read(&f)) {
		server_command(&f);
		free(f.buf);
	}
	/* stepd is gone, and so is the step: the library's threads need no care. */
	_exit(0);
}
