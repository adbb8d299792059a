/* SPDX-License-Identifier: Apache-2.0
 *
 * A library to preload into programs of Debian's MPICH: a rank that waits polls by this function of
 * UCX, and yields its CPU here where nothing has come. 64 ranks on two CPUs wait for each other's
 * time slices otherwise.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

unsigned ucp_worker_progress(void *worker);

unsigned ucp_worker_progress(void *worker)
{
	static unsigned (*next)(void *);

	if (!next)
		next = (unsigned (*)(void *))dlsym(RTLD_NEXT, "ucp_worker_progress");
	unsigned events = next(worker);
	if (events == 0)
		sched_yield();
	return events;
}
