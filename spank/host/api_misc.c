// SPDX-License-Identifier: Apache-2.0
/* Handles, contexts, names and numbers in words. */
#define _GNU_SOURCE
#include <string.h>

#include "api.h"
#include "stack.h"
#include "util.h"

struct host *host_of(spank_t spank)
{
	return spank != NULL && spank->magic == HANDLE_MAGIC ? &host : NULL;
}

SPANK_API int spank_remote(spank_t spank)
{
	const struct host *h = host_of(spank);

	if (h == NULL)
		return -1;
	return h->cfg.context == S_CTX_REMOTE;
}

SPANK_API spank_context_t spank_context(void)
{
	/* As measured: in constructors and in init() it is not known. */
	return host.ready ? (spank_context_t)host.cfg.context : S_CTX_ERROR;
}

SPANK_API int spank_symbol_supported(const char *symbol)
{
	if (symbol == NULL)
		return -1;
	for (uint32_t i = 0; i < HOOK_COUNT; i++) {
		if (hook_symbols[i] != NULL && strcmp(symbol, hook_symbols[i]) == 0)
			return 1;
	}
	return 0;
}

/* As measured; the last two are of 25.05, and the words ours. */
static const char *const texts[] = {
	"Generic error",
	"Bad argument",
	"Not in task context",
	"Environment variable exists",
	"No such environment variable",
	"Buffer too small",
	"Valid only in remote context",
	"Id/PID does not exist on this node",
	"Lookup by PID requested, but no tasks running",
	"Item not available from this callback",
	"Valid only in local or allocator context",
	"Plugin blames the node",
	"Plugin blames the job",
};

SPANK_API const char *spank_strerror(spank_err_t err)
{
	int n = (int)err;

	if (n >= ESPANK_ERROR && n < ESPANK_ERROR + (int)ARRAY_SIZE(texts))
		return texts[n - ESPANK_ERROR];
	if (n == 0)
		return "No error";
	if (n == -1)
		return "Unspecified error";
	return strerror(n);
}

SPANK_API spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[])
{
	struct host *h = host_of(spank);

	if (h == NULL || argc <= 0 || argv == NULL || argc > 1 << 20)
		return ESPANK_BAD_ARG;
	if (h->cfg.context != S_CTX_REMOTE)
		return ESPANK_NOT_REMOTE;
	if (h->hook != HOOK_TASK_INIT_PRIVILEGED && h->hook != HOOK_TASK_INIT)
		return ESPANK_NOT_AVAIL;
	for (int i = 0; i < argc; i++) {
		if (argv[i] == NULL)
			return ESPANK_BAD_ARG;
	}
	char **all = must_zero((size_t)argc + (size_t)h->argc + 1, sizeof(*all));
	for (int i = 0; i < argc; i++)
		all[i] = must(strdup(argv[i]));
	memcpy(all + argc, h->argv, (size_t)h->argc * sizeof(*all));
	/* The old array stays: a plugin may hold it (S_JOB_ARGV). */
	h->argv = all;
	h->argc += argc;
	return ESPANK_SUCCESS;
}
