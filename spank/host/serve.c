// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <stdlib.h>

#include "host.h"

struct host host = {
	.control = -1,
	.log = -1,
	.null = -1,
	.gate = -1,
	.job_ns = -1,
	.pid_ns = -1,
	.user_ns = -1,
	.own_pid_ns = -1,
	.helpers = -1,
	.proc = -1,
	.threads = -1,
	.namespaces = -1,
	.root = -1,
	.exec_pipe = -1,
	.emptied = {-1, -1},
	.hook = NO_HOOK,
	.rank = NO_RANK,
};

/* Carries out commands until EXIT or the channel's end. The value is for _exit: where
 * EXIT did not come no atexit handler or destructor of a plugin runs. */
int host_serve(struct host *h)
{
	static uint8_t packet[HOST_PACKET_MAX];
	int fds[HOST_FDS_MAX];
	size_t nfds;

	for (;;) {
		struct outcome out = {.plugin = NO_PLUGIN, .hook = NO_HOOK, .rank = NO_RANK};
		ssize_t n =
			packet_recv(h->control, packet, sizeof(packet), fds, HOST_FDS_MAX, &nfds);

		if (n <= 0)
			return 1;
		struct reader args = rd_init(packet, (size_t)n);
		uint32_t cmd = rd_u32(&args);
		if (!command_run(h, cmd, &args, fds, nfds, &out))
			continue; /* WAIT: obey what has come instead */
		reply_done(h, cmd, &out);
		if (cmd == CMD_EXIT && out.what[0] == 0) {
			/* Of plugins that could not be closed, or that stay (-z nodelete). */
			board_at(h, NO_PLUGIN, h->cfg.nplugins > 0 ? HOOK_CLOSE : NO_HOOK);
			exit(0);
		}
	}
}
