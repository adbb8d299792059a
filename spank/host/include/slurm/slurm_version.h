/* SPDX-License-Identifier: Apache-2.0
 *
 * The Slurm release whose SPANK interface these headers describe. A plugin is
 * stamped with it by SPANK_PLUGIN; define SLURM_VERSION_NUMBER beforehand to
 * stamp another release.
 */
#ifndef _SLURM_VERSION_H
#define _SLURM_VERSION_H

#define SLURM_VERSION_NUM(major, minor, micro) (((major) << 16) | ((minor) << 8) | (micro))
#define SLURM_VERSION_MAJOR(number)	       (((number) >> 16) & 0xff)
#define SLURM_VERSION_MINOR(number)	       (((number) >> 8) & 0xff)
#define SLURM_VERSION_MICRO(number)	       ((number)&0xff)

#ifndef SLURM_VERSION_NUMBER
#define SLURM_VERSION_NUMBER SLURM_VERSION_NUM(26, 5, 0)
#endif

#endif
