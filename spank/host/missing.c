// SPDX-License-Identifier: Apache-2.0
/* Calls of functions that nothing here provides. ld.so would print the name, to
 * /dev/null before user_init, and end the process; this ends it as well, and
 * stepd learns the name. */
#define _GNU_SOURCE
#include <unistd.h>

#include "host.h"
#include "imports.h"
#include "util.h"

/* As ld.so for "symbol lookup error". */
#define LOOKUP_STATUS 127

_Noreturn void plugin_fault(uint32_t fault, int status)
{
	/* A helper that a plugin has forked has no place on the board, and no log. */
	if (host.log >= 0)
		board_error(&host, host.in_task ? host.rank + 1 : 0, -(int)fault);
	_exit(status);
}

/* Addresses that differ, since a call brings no name along. What is beyond them
 * ends in ld.so. */
#define EIGHT(F, d)                                                                                \
	F(0##d##0) F(0##d##1) F(0##d##2) F(0##d##3) F(0##d##4) F(0##d##5) F(0##d##6) F(0##d##7)
#define SIXTYFOUR(F)                                                                               \
	EIGHT(F, 0)                                                                                \
	EIGHT(F, 1) EIGHT(F, 2) EIGHT(F, 3) EIGHT(F, 4) EIGHT(F, 5) EIGHT(F, 6) EIGHT(F, 7)

static struct caught {
	const struct plugin *plugin;
	const char *symbol;
	uint32_t n;
} caught[64];

static uint32_t ncaught;

static _Noreturn void called(const struct caught *c)
{
	/* By its object: a file that is in the stack twice is loaded once. */
	if (host.log >= 0 && host.plugin != NULL && host.plugin->dl == c->plugin->dl)
		plugin_fault(FAULT_MISSING + c->n, LOOKUP_STATUS);
	log_text(LEVEL_ERROR, "plugin \"%s\": called %s(), which nothing here provides",
		 c->plugin->base, c->symbol);
	_exit(LOOKUP_STATUS);
}

#define STUB(n)                                                                                    \
	static void stub_##n(void)                                                                 \
	{                                                                                          \
		called(&caught[n]);                                                                \
	}
SIXTYFOUR(STUB)

#define NAME(n) stub_##n,
static void (*const stubs[])(void) = {SIXTYFOUR(NAME)};

void missing_catch(const struct plugin *p, const char *symbol, uint32_t n, void (**slot)(void))
{
	/* Where a slot is an address and nothing else. */
#if defined(__x86_64__) || defined(__aarch64__)
	if (ncaught == ARRAY_SIZE(stubs))
		return;
	caught[ncaught] = (struct caught){.plugin = p, .symbol = symbol, .n = n};
	*slot = stubs[ncaught++];
#else
	(void)p, (void)symbol, (void)n, (void)slot;
#endif
}
