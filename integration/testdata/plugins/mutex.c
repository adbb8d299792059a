/* SPDX-License-Identifier: Apache-2.0
 *
 * A robust mutex in shared memory, made in user_init and used by all tasks in
 * task_init: mutex.so RANK. The task of that rank is the first to lock it, and
 * dies with it; the next one must be told (EOWNERDEAD), and each counts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(mutex, 1)

static struct shared {
	pthread_mutex_t mutex;
	sem_t locked; /* by the one that dies */
	int count, died, told;
} * shared;

int slurm_spank_user_init(spank_t sp, int ac, char *av[])
{
	pthread_mutexattr_t attr;

	(void)sp;
	(void)ac;
	(void)av;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED || pthread_mutexattr_init(&attr) != 0 ||
	    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) != 0 ||
	    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) != 0)
		return -1;
	return sem_init(&shared->locked, 1, 0) == 0 &&
			       pthread_mutex_init(&shared->mutex, &attr) == 0
		       ? 0
		       : -1;
}

int slurm_spank_task_init(spank_t sp, int ac, char *av[])
{
	uint32_t rank;

	if (ac < 1 || spank_get_item(sp, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS)
		return -1;
	bool dies = rank == (uint32_t)atoi(av[0]);
	if (!dies && (sem_wait(&shared->locked) < 0 || sem_post(&shared->locked) < 0))
		return -1;
	switch (pthread_mutex_lock(&shared->mutex)) {
	case 0:
		break;
	case EOWNERDEAD:
		shared->told++;
		pthread_mutex_consistent(&shared->mutex);
		break;
	default:
		return -1;
	}
	shared->count++;
	if (dies) {
		shared->died = 1;
		sem_post(&shared->locked);
		_exit(9); /* with the mutex */
	}
	return pthread_mutex_unlock(&shared->mutex) == 0 ? 0 : -1;
}

int slurm_spank_exit(spank_t sp, int ac, char *av[])
{
	(void)ac;
	(void)av;
	if (spank_remote(sp))
		slurm_info("mutex: count=%d died=%d told=%d", shared->count, shared->died,
			   shared->told);
	return 0;
}
