// Package cgroup is the task plugin task/cgroup: what limits a step by cgroups.
// Its pure half decides which value goes to which file, for cgroup v2 and for the
// v1 hierarchies, by the rules of cgroup.conf(5): MakePlan. noded carries the
// plan out for job and step before stepd is started, so that a limit that cannot
// be had is an error of the request: Apply. The rest, single tasks in the v1
// hierarchies, is stepd's: Plugin.
package cgroup
