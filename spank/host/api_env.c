// SPDX-License-Identifier: Apache-2.0
/* The job's environment, as plugins see and change it. Codes as measured: traces/table_env.tsv. */
#define _GNU_SOURCE
#include <stdbool.h>
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

/* The environment of prolog and epilog is the client's to set. Where it is not
 * available, the remote side and slurmd say so first, the job's scripts look at
 * the arguments first. Codes as measured: traces/table_jobcontrol.tsv; a call
 * that crashed there gets the documented error. */
static spank_err_t job_control(spank_t spank, bool args_ok)
{
	const struct host *h = host_of(spank);

	if (h == NULL)
		return ESPANK_BAD_ARG;
	switch (h->cfg.context) {
	case S_CTX_REMOTE:
		return ESPANK_NOT_LOCAL;
	case S_CTX_SLURMD:
		return ESPANK_NOT_AVAIL;
	case S_CTX_JOB_SCRIPT:
		return args_ok ? ESPANK_NOT_LOCAL : ESPANK_BAD_ARG;
	default:
		return args_ok ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
	}
}

SPANK_API spank_err_t spank_job_control_getenv(spank_t spank, const char *var, char *buf, int len)
{
	spank_err_t err = job_control(spank, var != NULL && buf != NULL && len > 0);

	if (err != ESPANK_SUCCESS)
		return err;
	const char *value = env_get(&host.job_control, var);
	return value == NULL ? ESPANK_ENV_NOEXIST : copy_value(value, buf, len);
}

SPANK_API spank_err_t spank_job_control_setenv(spank_t spank, const char *var, const char *val,
					       int overwrite)
{
	spank_err_t err = job_control(spank, var != NULL && val != NULL && env_name_ok(var));

	if (err != ESPANK_SUCCESS)
		return err;
	/* Measured: an existing one stays, and that is no error here. */
	if (overwrite || env_get(&host.job_control, var) == NULL) {
		env_set(&host.job_control, var, val);
		env_unset(&host.job_control_gone, var);
	}
	return ESPANK_SUCCESS;
}

SPANK_API spank_err_t spank_job_control_unsetenv(spank_t spank, const char *var)
{
	spank_err_t err = job_control(spank, var != NULL);

	if (err != ESPANK_SUCCESS)
		return err;
	env_unset(&host.job_control, var);
	/* A run in an allocation has an environment of its own, which begins empty (measured): its
	 * unset is about what the allocation has set. */
	if (env_name_ok(var))
		env_set(&host.job_control_gone, var, "");
	return ESPANK_SUCCESS;
}
