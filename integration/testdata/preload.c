/* SPDX-License-Identifier: Apache-2.0
 *
 * A library that a user preloads: it writes to stdout before main, as some
 * tracers and licence libraries do, and in the middle of a line. */
#include <unistd.h>

__attribute__((constructor)) static void loud(void)
{
	static const char words[] = "preloaded ";

	(void)!write(1, words, sizeof(words) - 1);
}
