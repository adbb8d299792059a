/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin with one fault, chosen when it is compiled:
 *
 *   -DVERSION=N   its plugin_version
 *   -DNO_VERSION -DNO_NAME -DNO_SPANK_VERSION -DNO_HOOKS
 *   -DUNDEFINED_DATA -DUNDEFINED_FUNCTION
 *   -DTYPE='"text"'
 *   -DSLIP        a function that is named as a hook and is none
 *   -DCONSTRUCTOR a constructor that does not return
 */
#include <unistd.h>

#include <slurm/spank.h>

#ifndef TYPE
#define TYPE "spank"
#endif
#ifndef VERSION
#define VERSION SLURM_VERSION_NUMBER
#endif

#ifndef NO_NAME
const char plugin_name[] = "bad";
#endif
const char plugin_type[] = TYPE;
#ifndef NO_VERSION
const unsigned int plugin_version = VERSION;
#endif
#ifndef NO_SPANK_VERSION
const unsigned int spank_plugin_version = 1;
#endif

#ifdef UNDEFINED_DATA
extern int no_such_data_xyz;
int *use_data(void);
int *use_data(void)
{
	return &no_such_data_xyz;
}
#endif
#ifdef UNDEFINED_FUNCTION
void no_such_function_xyz(void);
void use_function(void);
void use_function(void)
{
	no_such_function_xyz();
}
#endif

#ifdef SLIP
int slurm_spank_user_int(void);
int slurm_spank_user_int(void)
{
	return 0;
}
#endif
#ifdef CONSTRUCTOR
__attribute__((constructor)) static void never(void)
{
	for (;;)
		pause();
}
#endif

#ifndef NO_HOOKS
int slurm_spank_task_init(spank_t sp, int ac, char *av[])
{
	char *version = "";
	(void)ac;
	(void)av;
	spank_get_item(sp, S_SLURM_VERSION, &version);
	slurm_spank_log("bad plugin ran for %s", version);
	return 0;
}
#endif
