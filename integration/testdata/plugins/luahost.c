/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that embeds Lua: luahost.so SCRIPT. The script defines functions
 * with the hooks' names and is called with a table of the step; it has
 *
 *	spank.getenv(NAME) spank.setenv(NAME, VALUE) spank.log(TEXT)
 *	spank.option{name=, usage=, arg=}  in slurm_spank_init
 *	spank.context, spank.rank, spank.status
 */
#define _GNU_SOURCE
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

SPANK_PLUGIN(luahost, 1)

static lua_State *lua;
static spank_t handle; /* of the hook that runs */
static struct spank_option options[16];
static int noptions;

static int l_getenv(lua_State *l)
{
	char value[4096];

	if (spank_getenv(handle, luaL_checkstring(l, 1), value, sizeof(value)) != ESPANK_SUCCESS)
		return 0;
	lua_pushstring(l, value);
	return 1;
}

static int l_setenv(lua_State *l)
{
	spank_err_t err = spank_setenv(handle, luaL_checkstring(l, 1), luaL_checkstring(l, 2), 1);

	if (err != ESPANK_SUCCESS)
		return luaL_error(l, "setenv: %s", spank_strerror(err));
	return 0;
}

static int l_log(lua_State *l)
{
	slurm_info("%s", luaL_checkstring(l, 1));
	return 0;
}

/* Hands the option over to the script's function of its name. */
static int on_option(int val, const char *optarg, int remote)
{
	lua_getglobal(lua, "on_option");
	lua_pushstring(lua, options[val].name);
	lua_pushstring(lua, optarg);
	lua_pushboolean(lua, remote);
	if (lua_pcall(lua, 3, 0, 0) == LUA_OK)
		return 0;
	slurm_error("luahost: %s", lua_tostring(lua, -1));
	lua_pop(lua, 1);
	return -1;
}

static const char *field(lua_State *l, const char *name)
{
	lua_getfield(l, 1, name);
	const char *value = lua_tostring(l, -1);
	char *copy = value ? strdup(value) : NULL;

	lua_pop(l, 1);
	return copy;
}

static int l_option(lua_State *l)
{
	struct spank_option *o = &options[noptions];

	luaL_checktype(l, 1, LUA_TTABLE);
	if (noptions == 16)
		return luaL_error(l, "too many options");
	*o = (struct spank_option){.name = (char *)field(l, "name"),
				   .usage = (char *)field(l, "usage"),
				   .arginfo = (char *)field(l, "arg"),
				   .val = noptions,
				   .cb = on_option};
	o->has_arg = o->arginfo != NULL;
	if (spank_option_register(handle, o) != ESPANK_SUCCESS)
		return luaL_error(l, "cannot register option");
	noptions++;
	return 0;
}

static void set_step(spank_t sp)
{
	uint32_t rank;
	int status;

	lua_getglobal(lua, "spank");
	lua_pushinteger(lua, spank_context());
	lua_setfield(lua, -2, "context");
	if (spank_get_item(sp, S_TASK_GLOBAL_ID, &rank) == ESPANK_SUCCESS)
		lua_pushinteger(lua, rank);
	else
		lua_pushnil(lua);
	lua_setfield(lua, -2, "rank");
	if (spank_get_item(sp, S_TASK_EXIT_STATUS, &status) == ESPANK_SUCCESS)
		lua_pushinteger(lua, status);
	else
		lua_pushnil(lua);
	lua_setfield(lua, -2, "status");
	lua_pop(lua, 1);
}

static int call(spank_t sp, const char *hook)
{
	int rc = 0;

	handle = sp;
	set_step(sp);
	if (lua_getglobal(lua, hook) != LUA_TFUNCTION) {
		lua_pop(lua, 1);
		return 0;
	}
	if (lua_pcall(lua, 0, 1, 0) == LUA_OK) {
		rc = (int)lua_tointeger(lua, -1);
	} else {
		slurm_error("luahost: %s: %s", hook, lua_tostring(lua, -1));
		rc = -1;
	}
	lua_pop(lua, 1);
	return rc;
}

int slurm_spank_init(spank_t sp, int ac, char *av[])
{
	static const luaL_Reg functions[] = {{"getenv", l_getenv},
					     {"setenv", l_setenv},
					     {"log", l_log},
					     {"option", l_option},
					     {NULL, NULL}};

	if (ac < 1)
		return -1;
	lua = luaL_newstate();
	luaL_openlibs(lua);
	luaL_newlib(lua, functions);
	lua_setglobal(lua, "spank");
	if (luaL_dofile(lua, av[0]) != LUA_OK) {
		slurm_error("luahost: %s", lua_tostring(lua, -1));
		return -1;
	}
	return call(sp, "slurm_spank_init");
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		(void)ac;                                                                          \
		(void)av;                                                                          \
		return call(sp, "slurm_spank_" #name);                                             \
	}

HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)
