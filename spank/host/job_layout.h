/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the fields of slurm.h's job_info_msg_t and slurm_job_info_t are: they
 * differ from release to release. tests/job_layout.c compares each line with the
 * headers of that release.
 */
#ifndef STEPD_JOB_LAYOUT_H
#define STEPD_JOB_LAYOUT_H

/* The message: its size, and where last_update, record_count and job_array are;
 * the size of a record. */
#define JOB_MESSAGE_2205 32, 8, 16, 24, 904

/* F(field, offset, size, what it is filled from), of all that is not zero. A field
 * that slurmctld fills and a step's host does not know is UNSET: NO_VAL of its
 * size, as slurmctld sends what was not asked for. */
/* clang-format off */
#define JOB_FIELDS_2205(F) \
	F(alloc_node, 24, 8, SUBMIT_HOST) \
	F(alloc_sid, 32, 4, UNSET) \
	F(array_task_id, 52, 4, UNSET) \
	F(batch_flag, 88, 2, BATCH) \
	F(batch_host, 96, 8, BATCH_HOST) \
	F(boards_per_node, 112, 2, UNSET) \
	F(cluster, 136, 8, CLUSTER) \
	F(core_spec, 178, 2, UNSET) \
	F(cores_per_socket, 180, 2, UNSET) \
	F(billable_tres, 184, 8, UNSET_DOUBLE) \
	F(cpus_per_task, 192, 2, CPUS_PER_TASK) \
	F(cpu_freq_min, 196, 4, UNSET) \
	F(cpu_freq_max, 200, 4, UNSET) \
	F(cpu_freq_gov, 204, 4, UNSET) \
	F(exc_node_inx, 280, 8, NO_NODES) \
	F(group_id, 368, 4, GID) \
	F(het_job_offset, 384, 4, UNSET) \
	F(job_id, 388, 4, JOB_ID) \
	F(job_state, 400, 4, RUNNING) \
	F(name, 464, 8, JOB_NAME) \
	F(nodes, 480, 8, NODE_LIST) \
	F(nice, 488, 4, NICE_ZERO) \
	F(node_inx, 496, 8, NO_NODES) \
	F(ntasks_per_core, 504, 2, UNSET) \
	F(ntasks_per_tres, 506, 2, UNSET) \
	F(ntasks_per_node, 508, 2, UNSET) \
	F(ntasks_per_socket, 510, 2, UNSET) \
	F(ntasks_per_board, 512, 2, UNSET) \
	F(num_cpus, 516, 4, NCPUS) \
	F(num_nodes, 520, 4, NNODES) \
	F(num_tasks, 524, 4, NTASKS) \
	F(partition, 528, 8, PARTITION) \
	F(pn_min_memory, 544, 8, MEMORY) \
	F(pn_min_cpus, 552, 2, UNSET) \
	F(priority, 592, 4, UNSET) \
	F(profile, 596, 4, UNSET) \
	F(req_node_inx, 624, 8, NO_NODES) \
	F(requeue, 636, 2, UNSET) \
	F(restart_cnt, 648, 2, RESTARTS) \
	F(shared, 688, 2, UNSET) \
	F(show_flags, 690, 2, SHOW_FLAGS) \
	F(site_factor, 692, 4, NICE_ZERO) \
	F(sockets_per_board, 696, 2, UNSET) \
	F(sockets_per_node, 698, 2, UNSET) \
	F(start_protocol_ver, 712, 2, UNSET) \
	F(time_limit, 784, 4, UNSET) \
	F(threads_per_core, 792, 2, UNSET) \
	F(user_id, 864, 4, UID) \
	F(user_name, 872, 8, USER) \
	F(work_dir, 896, 8, CWD)
/* clang-format on */

#endif
