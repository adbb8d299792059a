/* SPDX-License-Identifier: Apache-2.0
 *
 * rude.so with the hooks of the other contexts: where a plugin has them, each job
 * has a prolog and an epilog.
 */
#include "rude.c"

HOOK(local_user_init)
HOOK(job_prolog)
HOOK(job_epilog)
HOOK(slurmd_exit)
