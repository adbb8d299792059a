/* SPDX-License-Identifier: Apache-2.0
 *
 * A library of a plugin. */
#ifdef NEXT
int next(void);
#endif
#ifdef DATA
extern int nobody_has_data;
#endif
int dep(void);
int dep(void)
{
#ifdef NEXT
	return next();
#elif defined(DATA)
	return nobody_has_data;
#else
	return 0;
#endif
}
