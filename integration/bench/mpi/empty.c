/* SPDX-License-Identifier: Apache-2.0
 *
 * An MPI program that does nothing. Every rank prints when it was before MPI_Init
 * and after MPI_Finalize, in nanoseconds of the machine's clock.
 */
#include <mpi.h>
#include <stdio.h>
#include <time.h>

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	long long started = now();

	MPI_Init(&argc, &argv);
	MPI_Finalize();
	printf("%lld %lld\n", started, now());
	return 0;
}
