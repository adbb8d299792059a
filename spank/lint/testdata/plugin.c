/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that is what the compiler's flags say. */
#include <stdio.h>

#include <slurm/spank.h>

#ifndef NO_NAME
const char plugin_name[] = "lint";
#endif
#ifndef NO_TYPE
const char plugin_type[] = "spank";
#endif
#ifdef VERSION
const unsigned int plugin_version = VERSION;
#elif !defined(NO_VERSION)
const unsigned int plugin_version = 0x160508;
#endif

#ifdef DATA /* a variable */
extern int nobody_has_data;
int *data(void);
int *data(void)
{
	return &nobody_has_data;
}
#endif

#ifdef FUNCTION /* bound when it is called */
void nobody_has_function(void);
void function(void);
void function(void)
{
	nobody_has_function();
}
#endif

#ifdef POINTER /* bound at once: its address is taken */
void nobody_has_pointer(void);
void (*pointer)(void) = nobody_has_pointer;
#endif

#ifdef WEAK
extern int nobody_has_weak __attribute__((weak));
int *weak(void);
int *weak(void)
{
	return &nobody_has_weak;
}
#endif

#ifdef LIBRARY
int dep(void);
int library(void);
int library(void)
{
	return dep();
}
#endif

#ifdef DEBUG
void debug(const char *fmt, ...);
void debug(const char *fmt, ...)
{
	(void)fmt;
}
#endif

#ifdef RUNS /* prints when it is loaded */
__attribute__((constructor)) static void runs(void)
{
	FILE *f = fopen(RUNS, "w");
	if (f != NULL)
		fclose(f);
}
#endif

#ifdef SLIP
int slurm_spank_task_int(void);
int slurm_spank_task_int(void)
{
	return 0;
}

int slurm_spank_helper_of_mine(void);
int slurm_spank_helper_of_mine(void)
{
	return 0;
}
#endif

#ifndef NO_HOOKS
int slurm_spank_task_init(spank_t sp, int ac, char *av[])
{
	uid_t uid;
	(void)ac;
	(void)av;
	return spank_get_item(sp, S_JOB_UID, &uid) == ESPANK_SUCCESS ? 0 : -1;
}

int slurm_spank_exit(spank_t sp, int ac, char *av[])
{
	(void)sp;
	(void)ac;
	(void)av;
	return 0;
}
#endif
