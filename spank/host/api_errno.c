// SPDX-License-Identifier: Apache-2.0
/* Error numbers, and the start and end of a library that needs neither. */
#define _GNU_SOURCE
#include <slurm/slurm.h>
#include <string.h>

#include "api.h"
#include "util.h"

/* Slurm's numbers that a plugin can meet here: those that this host sets, and
 * what a plugin's own libslurm answers where there is no controller. The numbers are
 * slurm_errno.h's, the words are ours. */
static const struct {
	int number;
	const char *text;
} slurm_errors[] = {
	{1001, "Cannot connect"},
	{1002, "Cannot send"},
	{1003, "Cannot receive"},
	{1005, "The other side speaks another version of the protocol"},
	{1007, "The other side does not believe who we are"},
	{1800, "Cannot connect to slurmctld"},
	{1801, "Cannot send to slurmctld"},
	{1802, "Cannot receive from slurmctld"},
	{1900, "Nothing has changed since the time given"},
	{2000, "No such partition"},
	{2002, "Permission denied to this user"},
	{2010, "User id is missing or not valid"},
	{2016, "The nodes are in use"},
	{ESLURM_INVALID_JOB_ID, "No such job"},
	{2018, "No such node"},
	{2021, "The job or step has ended already"},
	{2024, "The job is pending"},
	{2028, "No such node state"},
	{ESLURM_NOT_SUPPORTED, "Not supported here"},
	{2037, "Switched off"},
	{2061, "The prolog is still running"},
	{2062, "There are no steps"},
	{2085, "The job is not running"},
};

SPANK_API char *slurm_strerror(int errnum)
{
	for (size_t i = 0; i < ARRAY_SIZE(slurm_errors); i++) {
		if (slurm_errors[i].number == errnum)
			return (char *)slurm_errors[i].text;
	}
	return (char *)spank_strerror((spank_err_t)errnum);
}

SPANK_API int slurm_get_errno(void)
{
	return errno;
}

SPANK_API void slurm_seterrno(int errnum)
{
	errno = errnum;
}

SPANK_API void slurm_perror(const char *msg)
{
	dprintf(STDERR_FILENO, "%s: %s\n", msg ? msg : "", slurm_strerror(errno));
}

/* A host has no configuration of its own to read, and what libslurm would
 * connect to is not here. */
SPANK_API void slurm_init(const char *conf)
{
	(void)conf;
}

SPANK_API void slurm_fini(void)
{
}
