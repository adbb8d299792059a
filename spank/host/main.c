// SPDX-License-Identifier: Apache-2.0
/*
 * spankhost: loads SPANK plugins, calls their hooks, forks a step's tasks and
 * waits for them. stepd drives it (protocol.h); it decides nothing itself.
 *
 *	spankhost		the host, its channels at descriptors 3 and 4
 *	spankhost --lookup	answers one question to the name service
 *	spankhost --keep	lives until the end of its input: noded's scope of
 *				systemd lasts as long as it has a process
 *	spankhost --init	is process 1 of a job's pid namespace (init.c)
 *	spankhost --version
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

#ifndef STEPD_VERSION
#define STEPD_VERSION "unreleased"
#endif

static bool is_channel(int fd)
{
	int type = 0;
	socklen_t len = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET &&
	       fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

static bool start(struct host *h)
{
	sigset_t all;

	/* First: should stepd have died already, the control channel's end tells. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)prctl(PR_SET_NAME, "spankhost");
	/* Root's host has what the job's plugins were given: no other user reads
	 * its memory or gets a core of it. Each task's execve takes it back. */
	if (geteuid() == 0)
		(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (!is_channel(HOST_FD_CONTROL) || !is_channel(HOST_FD_LOG)) {
		dprintf(2,
			"spankhost: descriptors %d and %d must be sockets: "
			"this program is run by stepd, stepctl and noded\n",
			HOST_FD_CONTROL, HOST_FD_LOG);
		return false;
	}
	h->stepd = getppid();
	h->control = HOST_FD_CONTROL;
	h->log = HOST_FD_LOG;
	/* Until SETUP says what plugins are to see, nothing interrupts. */
	sigfillset(&all);
	(void)sigprocmask(SIG_SETMASK, &all, NULL);
	atfork_install();
	return true;
}

/* argv[0] is what ps shows; TAG_TITLE writes over it as far as there is room. */
static void find_title(struct host *h, char **argv)
{
	h->title = argv[0];
	h->title_size = argv[0] ? strlen(argv[0]) + 1 : 0;
}

static int keep(void)
{
	char word[64];
	ssize_t n;

	(void)prctl(PR_SET_NAME, "stepd-keeper");
	do
		n = read(0, word, sizeof(word));
	while (n > 0 || (n < 0 && errno == EINTR));
	return n < 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--lookup") == 0)
		return lookup_main();
	if (argc == 2 && strcmp(argv[1], "--keep") == 0)
		return keep();
	if (argc == 2 && strcmp(argv[1], "--init") == 0)
		return init_main();
	if (argc == 2 && strcmp(argv[1], "--version") == 0)
		return dprintf(1, "spankhost %s (protocol %d)\n", STEPD_VERSION,
			       HOST_PROTOCOL_VERSION) < 0;
	if (argc > 1) {
		dprintf(2,
			"spankhost: unknown argument \"%s\"\n"
			"usage: spankhost [--lookup | --keep | --init | --version]\n",
			argv[1]);
		return 1;
	}
	find_title(&host, argv);
	_exit(start(&host) ? host_serve(&host) : 1);
}
