/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin with the fault that it is compiled with: the faults of the
 * recorded failures, by their names there.
 */
#include <stdio.h>

#include <slurm/spank.h>

#define AT_RELEASE(micro) SLURM_VERSION_NUM(22, 5, micro)

#ifndef NONAME
const char plugin_name[] = "bad";
#endif
#ifdef WRONGTYPE
const char plugin_type[] = "select/bad";
#else
const char plugin_type[] = "spank";
#endif
#if defined(WRONGMAJ)
const unsigned int plugin_version = SLURM_VERSION_NUM(21, 8, 8);
#elif defined(WRONGMINOR)
const unsigned int plugin_version = AT_RELEASE(1);
#elif !defined(NOVER)
const unsigned int plugin_version = AT_RELEASE(8);
#endif
#ifndef NOSPV
const unsigned int spank_plugin_version = 1;
#endif

#ifdef UNDEFDATA
extern int no_such_data_xyz;
int *use_data(void);
int *use_data(void)
{
	return &no_such_data_xyz;
}
#endif
#ifdef UNDEF
void no_such_function_xyz(void);
void use_function(void);
void use_function(void)
{
	no_such_function_xyz();
}
#endif

#if defined(LONGOPT) /* 79 characters; 75 are the limit */
#define NAME "a23456789b123456789c123456789d123456789e123456789f123456789g123456789h123456789"
#elif defined(OPT75)
#define NAME "a23456789b123456789c123456789d123456789e123456789f123456789g123456789h12345"
#elif defined(BUILTIN)
#define NAME "ntasks"
#elif defined(DUPOPT)
#define NAME "pflag"
#endif

#ifdef NAME
static int on_option(int val, const char *optarg, int remote)
{
	fprintf(stderr, "bad option %d %s remote=%d\n", val, optarg ? optarg : "NULL", remote);
	return 0;
}

static struct spank_option option = {NAME, NULL, "of a plugin with a fault", 0, 1, on_option};
#endif

#ifndef EMPTY
int slurm_spank_init(spank_t sp, int ac, char *av[])
{
	(void)sp;
	(void)ac;
	(void)av;
#ifdef NULLOPT
	fprintf(stderr, "bad plugin: spank_option_register: %d\n", spank_option_register(sp, NULL));
#endif
#ifdef NAME
	spank_err_t rc = spank_option_register(sp, &option);
	if (rc != ESPANK_SUCCESS)
		fprintf(stderr, "bad plugin: spank_option_register: %d\n", rc);
#endif
	fprintf(stderr, "bad plugin init ran ctx=%d\n", spank_context());
	return 0;
}
#endif
