// SPDX-License-Identifier: Apache-2.0
//
// A plugin in C++: a global constructor, an exception that it catches itself, a
// thread that it joins. With the argument "throw=HOOK" an exception leaves a hook.
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include <slurm/spank.h>

SPANK_PLUGIN(cxx, 1)

namespace
{
struct Global {
	std::string words = "made before init";
} global;

std::string caught;
int counted;

int visit(const char *hook, int ac, char **av)
{
	for (int i = 0; i < ac; i++)
		if (std::string(av[i]) == std::string("throw=") + hook)
			throw std::runtime_error("nobody catches this");
	return 0;
}
} // namespace

extern "C" int slurm_spank_init(spank_t, int ac, char **av)
{
	try {
		throw std::runtime_error("caught inside");
	} catch (const std::exception &e) {
		caught = e.what();
	}
	std::thread([] { counted = 42; }).join();
	return visit("init", ac, av);
}

extern "C" int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	std::string all = global.words + ", " + caught + ", " + std::to_string(counted);
	if (spank_setenv(sp, "FROM_CXX", all.c_str(), 1) != ESPANK_SUCCESS)
		return -1;
	return visit("task_init", ac, av);
}
