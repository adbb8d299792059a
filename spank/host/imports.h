/* SPDX-License-Identifier: Apache-2.0
 *
 * What plugins import beside spank.h.
 */
#ifndef STEPD_IMPORTS_H
#define STEPD_IMPORTS_H

#include <stdint.h>

#include "host.h"

/* imports.c: sends REP_MISSING for what a loaded plugin may call in vain. */
void imports_check(struct host *h, struct plugin *p);

/* missing.c: has a call of the symbol, the n-th that was reported for p, end the
 * process with its name on the board; slot is where its address is kept. */
void missing_catch(const struct plugin *p, const char *symbol, uint32_t n, void (**slot)(void));

/* Ends this process in a plugin's hook; fault (enum fault) tells stepd why. */
_Noreturn void plugin_fault(uint32_t fault, int status);

/* api_job.c: whether slurm_load_job knows what a plugin's release wants. */
bool job_is_told_to(const struct plugin *p);

#endif
