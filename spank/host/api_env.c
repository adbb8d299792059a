// SPDX-License-Identifier: Apache-2.0
/* The job's environment, as plugins see and change it. Codes as measured: traces/table_env.tsv. */
#define _GNU_SOURCE
#include <string.h>

#include "api.h"

spank_err_t copy_value(const char *value, char *buf, int len)
{
	size_t need = strlen(value) + 1;

	if (len < 0 || buf == NULL)
		return ESPANK_BAD_ARG;
	if (need <= (size_t)len) {
		memcpy(buf, value, need);
		return ESPANK_SUCCESS;
	}
	if (len > 0) {
		memcpy(buf, value, (size_t)len - 1);
		buf[len - 1] = 0;
	}
	return ESPANK_NOSPACE;
}

/* What is wrong before the arguments are looked at. */
static spank_err_t check(spank_t spank)
{
	const struct host *h = host_of(spank);

	if (h == NULL)
		return ESPANK_BAD_ARG;
	return h->cfg.context == S_CTX_REMOTE ? ESPANK_SUCCESS : ESPANK_NOT_REMOTE;
}

SPANK_API spank_err_t spank_getenv(spank_t spank, const char *var, char *buf, int len)
{
	spank_err_t err = check(spank);
	const char *value;

	if (err != ESPANK_SUCCESS)
		return err;
	if (var == NULL || len < 0)
		return ESPANK_BAD_ARG;
	value = env_get(&host.env, var);
	return value == NULL ? ESPANK_ENV_NOEXIST : copy_value(value, buf, len);
}

SPANK_API spank_err_t spank_setenv(spank_t spank, const char *var, const char *val, int overwrite)
{
	spank_err_t err = check(spank);

	if (err != ESPANK_SUCCESS)
		return err;
	if (var == NULL || val == NULL || !env_name_ok(var))
		return ESPANK_BAD_ARG;
	if (!overwrite && env_get(&host.env, var) != NULL)
		return ESPANK_ENV_EXISTS;
	env_set(&host.env, var, val);
	return ESPANK_SUCCESS;
}

SPANK_API spank_err_t spank_unsetenv(spank_t spank, const char *var)
{
	spank_err_t err = check(spank);

	if (err != ESPANK_SUCCESS)
		return err;
	if (var == NULL)
		return ESPANK_BAD_ARG;
	env_unset(&host.env, var);
	return ESPANK_SUCCESS;
}

/* The environment of prolog and epilog is the client's to set. */
static spank_err_t job_control(spank_t spank)
{
	const struct host *h = host_of(spank);

	if (h == NULL)
		return ESPANK_BAD_ARG;
	return h->cfg.context == S_CTX_REMOTE ? ESPANK_NOT_LOCAL : ESPANK_NOT_AVAIL;
}

SPANK_API spank_err_t spank_job_control_getenv(spank_t spank, const char *var, char *buf, int len)
{
	(void)var;
	(void)buf;
	(void)len;
	return job_control(spank);
}

SPANK_API spank_err_t spank_job_control_setenv(spank_t spank, const char *var, const char *val,
					       int overwrite)
{
	(void)var;
	(void)val;
	(void)overwrite;
	return job_control(spank);
}

SPANK_API spank_err_t spank_job_control_unsetenv(spank_t spank, const char *var)
{
	(void)var;
	return job_control(spank);
}
