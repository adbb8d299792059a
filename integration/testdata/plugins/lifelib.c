// SPDX-License-Identifier: Apache-2.0
/* A library that a plugin needs, with an init() and a fini() that are not the plugin's. */
#include <stdlib.h>

int init(void)
{
	abort();
}

void fini(void)
{
	abort();
}
