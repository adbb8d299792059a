/* SPDX-License-Identifier: Apache-2.0
 *
 * leaderless ignores SIGTERM, and its first thread ends: the process lives on by
 * another one, as a program does whose main() calls pthread_exit(). That other
 * thread says "ready PID" when the first one has ended. /proc has such a process as
 * a zombie.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static pthread_t first;

static void *stay(void *unused)
{
	(void)unused;
	if (pthread_join(first, NULL) != 0)
		_exit(1);
	printf("ready %d\n", getpid());
	fflush(stdout);
	for (;;)
		pause();
}

int main(void)
{
	pthread_t other;

	signal(SIGTERM, SIG_IGN);
	first = pthread_self();
	if (pthread_create(&other, NULL, stay, NULL) != 0)
		return 1;
	pthread_exit(NULL);
}
