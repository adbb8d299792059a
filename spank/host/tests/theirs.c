// SPDX-License-Identifier: Apache-2.0
/* A library that a plugin brings along, as it would a libslurm of its own: the
 * host has one of its names, and not the other. */
static int message, freed;

void *their_message(void);
int their_freed(void);
void slurm_free_job_info_msg(void *msg);

void *their_message(void)
{
	return &message;
}

int their_freed(void)
{
	return freed;
}

void slurm_free_job_info_msg(void *msg)
{
	freed += msg == &message;
}
