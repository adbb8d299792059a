/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the fields of slurm.h's job_info_msg_t and slurm_job_info_t are: they
 * differ from release to release, and not from one micro release to the next.
 * tests/job_layout.c compares each column with the headers of its release.
 */
#ifndef STEPD_JOB_LAYOUT_H
#define STEPD_JOB_LAYOUT_H

/* The message: its size, and where last_update, record_count and job_array are. */
#define JOB_MESSAGE 32, 8, 16, 24

/* R(release's number without the micro one, size of a record), for each column below. 23.11 has
 * 23.02's. 26.05 is missing: its slurm_load_job is called otherwise, with a structure. */
#define JOB_RELEASES(R)                                                                            \
	R(0x1508, 896)                                                                             \
	R(0x1605, 904) R(0x1702, 928) R(0x1805, 952) R(0x180b, 960) R(0x1905, 976) R(0x190b, 1016)

/* F(field, size, what it is filled from, offset in each release), of all that is not zero. A
 * field that slurmctld fills and a step's host does not know is UNSET: NO_VAL of its size, as
 * slurmctld sends what was not asked for. */
/* clang-format off */
#define JOB_FIELDS(F) \
	F(alloc_node, 8, SUBMIT_HOST, 24, 24, 24, 24, 24, 24, 24) \
	F(alloc_sid, 4, UNSET, 32, 32, 32, 32, 32, 32, 32) \
	F(array_job_id, 4, ARRAY_JOB, 48, 48, 48, 48, 48, 48, 48) \
	F(array_task_id, 4, ARRAY_TASK, 52, 52, 52, 52, 52, 52, 52) \
	F(batch_flag, 2, BATCH, 88, 88, 88, 88, 88, 88, 88) \
	F(batch_host, 8, BATCH_HOST, 96, 96, 96, 96, 96, 96, 96) \
	F(boards_per_node, 2, UNSET, 112, 112, 112, 112, 112, 112, 112) \
	F(cluster, 8, CLUSTER, 136, 136, 136, 136, 136, 136, 136) \
	F(core_spec, 2, UNSET, 178, 178, 186, 186, 186, 186, 186) \
	F(cores_per_socket, 2, UNSET, 180, 180, 188, 188, 188, 188, 188) \
	F(billable_tres, 8, UNSET_DOUBLE, 184, 184, 192, 192, 192, 192, 192) \
	F(cpus_per_task, 2, CPUS_PER_TASK, 192, 192, 200, 200, 200, 200, 200) \
	F(cpu_freq_min, 4, UNSET, 196, 196, 204, 204, 204, 204, 204) \
	F(cpu_freq_max, 4, UNSET, 200, 200, 208, 208, 208, 208, 208) \
	F(cpu_freq_gov, 4, UNSET, 204, 204, 212, 212, 212, 212, 212) \
	F(eligible_time, 8, START, 256, 256, 264, 264, 264, 264, 264) \
	F(end_time, 8, END, 264, 264, 272, 272, 272, 272, 272) \
	F(exc_node_inx, 8, NO_NODES, 280, 280, 288, 288, 288, 288, 288) \
	F(group_id, 4, GID, 368, 368, 392, 392, 392, 392, 392) \
	F(het_job_offset, 4, UNSET, 384, 384, 408, 408, 408, 408, 408) \
	F(job_id, 4, JOB_ID, 388, 388, 412, 412, 412, 412, 1008) \
	F(job_state, 4, STATE, 400, 400, 432, 432, 432, 432, 432) \
	F(name, 8, JOB_NAME, 464, 464, 496, 496, 496, 504, 504) \
	F(nodes, 8, NODE_LIST, 480, 480, 512, 512, 512, 520, 520) \
	F(nice, 4, NICE_ZERO, 488, 488, 520, 520, 520, 528, 528) \
	F(node_inx, 8, NO_NODES, 496, 496, 528, 528, 528, 536, 536) \
	F(ntasks_per_core, 2, UNSET, 504, 504, 536, 536, 536, 544, 544) \
	F(ntasks_per_tres, 2, UNSET, 506, 506, 538, 538, 538, 546, 546) \
	F(ntasks_per_node, 2, UNSET, 508, 508, 540, 540, 540, 548, 548) \
	F(ntasks_per_socket, 2, UNSET, 510, 510, 542, 542, 542, 550, 550) \
	F(ntasks_per_board, 2, UNSET, 512, 512, 544, 544, 544, 552, 552) \
	F(num_cpus, 4, NCPUS, 516, 516, 548, 548, 548, 556, 556) \
	F(num_nodes, 4, NNODES, 520, 520, 552, 552, 552, 560, 560) \
	F(num_tasks, 4, NTASKS, 524, 524, 556, 556, 556, 564, 564) \
	F(partition, 8, PARTITION, 528, 528, 560, 560, 568, 576, 576) \
	F(pn_min_memory, 8, MEMORY, 536, 544, 576, 576, 584, 592, 592) \
	F(pn_min_cpus, 2, UNSET, 544, 552, 584, 584, 592, 600, 600) \
	F(priority, 4, UNSET, 584, 592, 624, 616, 624, 632, 632) \
	F(profile, 4, UNSET, 588, 596, 628, 640, 648, 656, 656) \
	F(req_node_inx, 8, NO_NODES, 616, 624, 656, 672, 680, 688, 688) \
	F(requeue, 2, UNSET, 628, 636, 668, 684, 692, 700, 700) \
	F(restart_cnt, 2, RESTARTS, 640, 648, 680, 696, 704, 712, 712) \
	F(shared, 2, UNSET, 680, 688, 712, 736, 744, 752, 752) \
	F(site_factor, 4, NICE_ZERO, 684, 692, 716, 740, 748, 756, 756) \
	F(sockets_per_board, 2, UNSET, 688, 696, 720, 744, 752, 760, 784) \
	F(sockets_per_node, 2, UNSET, 690, 698, 722, 746, 754, 762, 786) \
	F(start_time, 8, START, 696, 704, 728, 752, 760, 768, 792) \
	F(start_protocol_ver, 2, UNSET, 704, 712, 736, 760, 768, 776, 800) \
	F(submit_time, 8, START, 752, 760, 784, 808, 816, 832, 864) \
	F(time_limit, 4, TIME_LIMIT, 776, 784, 808, 832, 840, 856, 888) \
	F(threads_per_core, 2, UNSET, 784, 792, 816, 840, 848, 864, 896) \
	F(user_id, 4, UID, 856, 864, 888, 912, 920, 936, 968) \
	F(user_name, 8, USER, 864, 872, 896, 920, 928, 944, 976) \
	F(work_dir, 8, CWD, 888, 896, 920, 944, 952, 968, 1000)

/* Of some releases alone: 0 where a release does not have it. */
#define JOB_FIELDS_TO_2405(F) \
	F(show_flags, 2, SHOW_FLAGS, 682, 690, 714, 738, 0, 0, 0)
#define JOB_FIELDS_2511(F) \
	F(step_id.job_id, 4, JOB_ID, 0, 0, 0, 0, 0, 0, 768) \
	F(step_id.step_id, 4, UNSET, 0, 0, 0, 0, 0, 0, 776) \
	F(step_id.step_het_comp, 4, UNSET, 0, 0, 0, 0, 0, 0, 772)
/* clang-format on */

#endif
