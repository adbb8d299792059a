/* SPDX-License-Identifier: Apache-2.0
 * The peer that does nothing else: fork and exec N times, then wait for all. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1;

	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(127);
		}
		if (pid < 0)
			return 1;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
