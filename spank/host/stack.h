/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of the hooks.
 */
#ifndef STEPD_STACK_H
#define STEPD_STACK_H

#include "protocol.h"

/* The symbol of each hook; NULL for those that are none. */
extern const char *const hook_symbols[HOOK_COUNT];

/* As Slurm's messages have it: without slurm_spank_. */
const char *hook_name(uint32_t hook);

#endif
