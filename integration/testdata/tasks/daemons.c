/* SPDX-License-Identifier: Apache-2.0
 *
 * daemons N makes N daemons, each in a session of its own and an orphan,
 * that ignore all that can be ignored. It says "ready" when all run, and waits for its
 * end.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int n = argc == 2 ? atoi(argv[1]) : 0;
	int up[2];
	char c;

	if (n <= 0 || pipe(up) < 0)
		return 1;
	for (int sig = 1; sig < 32; sig++)
		signal(sig, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid < 0) {
			perror("daemons: fork");
			return 1;
		}
		if (pid == 0) {
			if (setsid() < 0 || fork() != 0)
				_exit(0);
			if (write(up[1], "x", 1) != 1)
				_exit(1);
			for (;;)
				pause();
		}
		waitpid(pid, NULL, 0);
	}
	for (int i = 0; i < n; i++)
		if (read(up[0], &c, 1) != 1)
			return 1;
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
