/* SPDX-License-Identifier: Apache-2.0
 *
 * hoppers N makes N processes that hop without end: each forks, and leaves its
 * child behind by its own end, so that no process id is one for long, and each
 * is an orphan whose end another process has to wait for. They ignore all that
 * can be ignored. It says "ready" when all hop, and waits for its end.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void hop(void)
{
	for (;;) {
		pid_t pid = fork();

		if (pid > 0)
			_exit(0);
		if (pid < 0) /* the step's limit: others have to be waited for */
			sched_yield();
	}
}

int main(int argc, char **argv)
{
	int n = argc == 2 ? atoi(argv[1]) : 0;

	if (n <= 0)
		return 1;
	for (int sig = 1; sig < 32; sig++)
		signal(sig, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
	for (int i = 0; i < n;) {
		pid_t pid = fork();

		if (pid == 0)
			hop();
		if (pid > 0)
			i++;
		else /* as above */
			sched_yield();
	}
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
