/* SPDX-License-Identifier: Apache-2.0
 *
 * The one source of the numbers between stepd (Go) and spankhost (C). The Go
 * half reads this file in a test and fails when the two differ.
 *
 * Three channels:
 *
 *   control  SOCK_SEQPACKET, descriptor HOST_FD_CONTROL: stepd sends a command,
 *            the host answers it with exactly one REP_DONE (other replies may
 *            come before it). One command at a time. Closed in every child.
 *   log      SOCK_SEQPACKET, descriptor HOST_FD_LOG, one way: REC_* records
 *            from the host and from the task children until they exec. What a
 *            child says there is not trusted: it may run as the user.
 *   board    a shared memfd: where the host and each child are (slot), and a
 *            journal of every hook with its times (entry). No system call per
 *            hook, and it outlives a crash.
 *
 *     stepd                                   spankhost
 *     SETUP {config, board, gate, null} ----> map, remember
 *     LOAD ---------------------------------> dlopen every plugin
 *          <--------------------------------- REP_PLUGIN {plugin}*, REP_DONE
 *     INIT {keep[]} ------------------------> init() of each; init, option callbacks, init_post_opt
 *          <--------------------------------- REP_REFUSED {plugin}*, REP_DONE
 *     FDS {descriptors} (0..n times) -------> keep in the descriptor table
 *     STEP {streams, task env} -------------> remember
 *     USER_INIT ----------------------------> groups, egid, euid, umask, chdir; user_init
 *     FORK ---------------------------------> fork every task; root again
 *          <--------------------------------- REP_TASKS {rank, pid}* + pidfd, exec pipe each
 *     (stepd tracks every pid)
 *     POST_FORK ----------------------------> task_post_fork for every rank in order
 *     (stepd writes a byte into the gate, which no task takes)
 *     WAIT ---------------------------------> reap; REP_EXIT per task; REP_DONE after the last
 *          <--------------------------------- REP_EPILOG {rank, pid} + pipe, before the REP_EXIT of a task with an epilog
 *     (stepd tracks the epilog's process and writes a byte into the pipe)
 *     EXIT ---------------------------------> exit hooks, fini() and dlclose of each; REP_DONE; exit(0)
 *
 * So it is in remote context. In the others nothing is forked, and stepctl,
 * noded or `stepd spank' drive the host:
 *
 *     local, allocator	 SETUP LOAD INIT OPTION* POST_OPT [LOCAL_USER_INIT] EXIT
 *     slurmd		 SETUP LOAD INIT HOOK(slurmd_exit) EXIT
 *     job_script	 SETUP LOAD INIT HOOK(job_prolog or job_epilog) EXIT
 *
 * EXIT may come after SETUP at any time: it does what the context owes by then.
 * INIT answers with REP_OPTION for each option that the plugins offer there,
 * and in job_script calls no slurm_spank_ function. STATE may come between any two of them.
 *
 * All integers are little endian. A string is u32 length and that many bytes,
 * without a terminator. A record is u32 type, then its fields. Config blobs
 * (SETUP, STEP) are sequences of {u16 tag, u16 flags, u32 length, bytes};
 * an unknown tag with TLV_OPTIONAL in its flags is skipped, any other is fatal.
 */
#ifndef STEPD_PROTOCOL_H
#define STEPD_PROTOCOL_H

#include <stdatomic.h>
#include <stdint.h>

/* The comments are columns, and a test reads a constant a line. */
/* clang-format off */
#define HOST_PROTOCOL_VERSION 9

#define HOST_FD_CONTROL 3
#define HOST_FD_LOG 4

/* The largest packet on control and log; larger things travel in memfds. */
#define HOST_PACKET_MAX 65536
/* Descriptors in one packet (SCM_MAX_FD is 253). */
#define HOST_FDS_MAX 200
/* Descriptors that FDS may hand over in all: 3 streams for 65533 tasks do not fit RLIMIT_NOFILE anyway. */
#define HOST_FD_TABLE_MAX 16384

/* Commands, stepd to host. */
enum host_cmd {
	CMD_SETUP = 1, /* u32 version; fds: config memfd, board memfd, gate read end (/dev/null where nothing is
			* forked), /dev/null (O_RDWR), cgroup.procs where plugins' helpers belong (/dev/null
			* where they stay) [, the namespaces of the job's container, when TAG_JOIN_NS:
			* mount, pid, user, each at most once; which is which, the kernel tells] */
	CMD_LOAD = 2,
	CMD_INIT = 3, /* u32 count, u8 keep[count]: 0 leaves the plugin out of the stack */
	CMD_FDS = 4,  /* descriptors, appended to the table */
	CMD_STEP = 5, /* fds: step memfd (TLV with TAG_STREAM, TAG_TASK_ENV, TAG_TASK_FD, TAG_ENV_SET, TAG_MEM_POLICY) */
	/* fd: standard error till EXIT, where it is not to be what the first task has. */
	CMD_USER_INIT = 6,
	CMD_FORK = 7,
	CMD_POST_FORK = 8,
	CMD_WAIT = 9,
	CMD_EXIT = 10, /* outside of remote context: fd: memfd (TLV): TAG_HOST_ENV to set before */
	/* The user has given an option: u32 plugin; u32 option; u32 has_value; fd: memfd of the value, if any. */
	CMD_OPTION = 11,
	CMD_POST_OPT = 12,	  /* init_post_opt; fd: as EXIT */
	CMD_LOCAL_USER_INIT = 13, /* fd: memfd (TLV): what the job and step are, and TAG_HOST_ENV to set */
	CMD_STATE = 14,		  /* answered by REP_STATE */
	CMD_HOOK = 15,		  /* u32 hook */
	/* Name service questions (spankhost --lookup): */
	CMD_LOOKUP = 20,
};

/* Replies, host to stepd, on control. */
enum host_rep {
	/* u32 cmd; i32 rc (0, or the first fatal hook's rc, or -1); i32 errno; u32 plugin; u32 hook; u32 rank; string what:
	 * what could not be done ("cannot change directory"), empty for a hook's own failure. */
	REP_DONE = 101,
	/* To the end of the record, for each plugin: u32 index; u32 plugin_version (0 absent); u32 flags (PLUGIN_*);
	 * u32 hooks (bit per enum hook); string dlerror; string plugin_name; string plugin_type */
	REP_PLUGIN = 102,
	/* u32 count; count * { u32 rank; i32 pid }; descriptors: pidfd, exec pipe per task in the same order */
	REP_TASKS = 103,
	/* u32 rank; u32 raw wait status; u32 known (0: a plugin reaped it, and the rest is zero); u64 utime_us,
	 * stime_us; i64 maxrss_kb, minflt, majflt, inblock, oublock; string: /proc/PID/io of the task that has ended,
	 * empty where it cannot be read */
	REP_EXIT = 104,
	/* u32 plugin; u32 option; i32 has_arg; string name; string arginfo; string usage */
	REP_OPTION = 105,
	/* Before the first REP_PLUGIN, for each function that the plugin may call and nothing here provides: u32 plugin;
	 * u32 more (0; in a last record, without a symbol, how many are not told); string symbol */
	REP_MISSING = 106,
	/* u32 plugin; i32 rc: what its init() has returned; it is not in the stack any more, and closed. Before REP_DONE
	 * of INIT */
	REP_REFUSED = 110,
	/* u32 fd (1 or 2); descriptor: an early stream, before REP_DONE of USER_INIT */
	REP_STREAM = 108,
	/* u32 rank; i32 pid; descriptor: the write end of a pipe, by a byte of which the process begins */
	REP_EPILOG = 109,
	/* fd: memfd (TLV): TAG_HOST_ENV per entry of environ, TAG_JOB_CONTROL per job control variable,
	 * TAG_ENV_UNSET (NAME=) per one that a plugin has unset */
	REP_STATE = 107,
};

/* Records on the log channel. */
enum host_rec {
	/* u32 level (enum log_level); u32 rank (NO_RANK in the host); u32 plugin (NO_PLUGIN); u32 hook; string text */
	REC_LOG = 201,
	/* A task was not exec'd: u32 rank; u32 stage; i32 errno; string path: what failed, before _exit;
	 * string: why, in words, empty where it is not known */
	REC_FAIL = 202,
	/* A plugin changed what others share: u32 plugin; u32 hook; string what ("closed a standard descriptor") */
	REC_WARN = 203,
	/* A plugin left threads running: u32 plugin; u32 hook; u32 how many */
	REC_THREADS = 204,
	/* A limit is lower than the user passes it on: u32 rank; u64 wanted, had (~0 is none); string name */
	REC_LIMIT = 205,
	/* A signal of its own making ends the process: u32 rank; u32 signal; string where
	 * ("crash.so+0x1119 (slurm_spank_task_init+0x15)") */
	REC_CRASH = 206,
};

enum log_level {
	LEVEL_ERROR = 1, /* slurm_error: to the user as "stepd-NODE: error: TEXT" */
	LEVEL_INFO = 2,
	LEVEL_VERBOSE = 3,
	LEVEL_DEBUG = 4,
	LEVEL_DEBUG2 = 5,
	LEVEL_DEBUG3 = 6,
	LEVEL_SPANK_LOG = 7, /* slurm_spank_log: to the user as it is */
	LEVEL_WARNING = 8,   /* to the user in every hook, and each text once */
};

/* A "rank" in these records is a task's local id: its place in TAG_GLOBAL_IDS,
 * which has the ranks of the whole step. */
#define NO_RANK 0xffffffffu
#define NO_PLUGIN 0xffffffffu

/* Hooks, in the order of a step. The number is the bit in REP_PLUGIN.hooks. */
enum hook {
	HOOK_INIT = 0,
	HOOK_JOB_PROLOG = 1,
	HOOK_INIT_POST_OPT = 2,
	HOOK_LOCAL_USER_INIT = 3,
	HOOK_USER_INIT = 4,
	HOOK_TASK_INIT_PRIVILEGED = 5,
	HOOK_TASK_INIT = 6,
	HOOK_TASK_POST_FORK = 7,
	HOOK_TASK_EXIT = 8,
	HOOK_JOB_EPILOG = 9,
	HOOK_SLURMD_EXIT = 10,
	HOOK_EXIT = 11,
	HOOK_OPTION = 12, /* an option's callback; not a symbol */
	HOOK_LOAD = 13,	  /* dlopen with its constructors; not a symbol */
	HOOK_BEGIN = 14,  /* init() of its own */
	HOOK_FINI = 15,	  /* fini() of its own */
	HOOK_CLOSE = 16,  /* dlclose, its destructors and atexit handlers; NO_PLUGIN: exit, with what is left of them */
	HOOK_COUNT = 17,
};
#define NO_HOOK 0xffffffffu

/* TAG_STEP_ID of a job's extern step (step.ExternStep). */
#define EXTERN_STEP 0xfffffffcu

/* Where the host or a task child is; a child's slot keeps the last one. */
enum stage {
	STAGE_NONE = 0,
	STAGE_HOST = 1, /* the host, outside of a hook */
	STAGE_FORKED = 2,
	STAGE_JOIN = 3,
	STAGE_PRIVILEGED = 4, /* task_init_privileged */
	STAGE_BECOME_USER = 5,
	STAGE_STDIO = 6,
	STAGE_GATE = 7,
	STAGE_TASK_INIT = 8,
	STAGE_LIMITS = 9,
	STAGE_EXEC = 10,
	STAGE_MEM_POLICY = 11, /* between the gate and task_init */
	STAGE_TASK_PROLOG = 12, /* between task_init and the limits */
};

enum plugin_flag {
	PLUGIN_LOADED = 1,
	PLUGIN_HAS_VERSION = 2,	      /* plugin_version is exported */
	PLUGIN_HAS_SPANK_VERSION = 4, /* spank_plugin_version is exported */
	PLUGIN_HAS_OPTIONS = 8,	      /* spank_options is exported */
};

/* Config tags. Repeated tags keep their order. */
#define TLV_OPTIONAL 1

enum config_tag {
	/* SETUP */
	TAG_CONTEXT = 1,     /* u32: spank_context: 1 local, 2 remote, 3 allocator, 4 slurmd, 5 job_script */
	TAG_TITLE = 2,	     /* string for argv[0] */
	TAG_UID = 3,	     /* u32 */
	TAG_GID = 4,	     /* u32 */
	TAG_GROUPS = 5,	     /* u32[] */
	TAG_USER = 6,	     /* string */
	TAG_JOB_ID = 7,	     /* u32 */
	TAG_STEP_ID = 8,     /* u32 */
	TAG_NNODES = 9,	     /* u32 */
	TAG_NODEID = 10,     /* u32 */
	TAG_NODE_NAME = 11,  /* string */
	TAG_TOTAL_TASKS = 12, /* u32 */
	TAG_GLOBAL_IDS = 13, /* u32[]: global rank of each local task; its length is the local task count */
	TAG_NCPUS = 14,	     /* u32 */
	TAG_CPUS_PER_TASK = 15, /* u32 */
	TAG_JOB_CORES = 16,  /* string */
	TAG_STEP_CORES = 17, /* string */
	TAG_JOB_MEM = 18,    /* u64, MB */
	TAG_STEP_MEM = 19,   /* u64, MB */
	TAG_RESTARTS = 20,   /* u32 */
	TAG_ARRAY_ID = 21,   /* u32 */
	TAG_ARRAY_TASK = 22, /* u32 */
	TAG_ARG = 23,	     /* string, repeated: argv */
	TAG_ENV = 24,	     /* string, repeated: NAME=VALUE, each name once */
	TAG_CWD = 25,	     /* string */
	TAG_UMASK = 26,	     /* u32 */
	TAG_NO_NEW_PRIVS = 27, /* u32, 0 or 1 */
	TAG_JOIN_NS = 28,    /* u32: JOIN_NEVER, JOIN_TASKS, JOIN_HOST */
	TAG_PLUGIN = 29,     /* u32 required; string path. Its arguments follow: */
	TAG_PLUGIN_ARG = 30, /* string, of the last TAG_PLUGIN */
	TAG_OPTION = 31,     /* u32 has_value; string plugin; string name; string value: an option that the user gave */
	TAG_HOST_ENV = 32,   /* string, repeated: the host's own environ */
	TAG_OOM_SCORE = 33,  /* i32, written to the tasks' oom_score_adj */
	TAG_JOB_CONTROL = 34, /* string, repeated: NAME=VALUE of the job control environment */
	/* STEP */
	TAG_STREAM = 40,   /* u32 rank (NO_RANK: all that have no own); u32 fd (0..2); u32 kind (STREAM_*);
			    * u32 table index or open flags; string path */
	TAG_TASK_ENV = 41, /* u32 rank (NO_RANK: all); string NAME=VALUE: set after the gate, before task_init */
	TAG_TASK_FD = 42,  /* u32 rank; u32 table index; string NAME: survives exec, its number is put into env NAME */
	TAG_ENV_SET = 43,  /* string NAME=VALUE: set in the job's environment (MPI prefork) */
	TAG_ENV_UNSET = 44, /* string NAME: removed just before exec (SLURM_RLIMIT_...) */
	TAG_EXIT_ENV = 45, /* string NAME=VALUE: set in the job's environment for task_exit */
	TAG_MEM_POLICY = 46, /* u32 rank (NO_RANK: all that have no own); u32 mode and u64[] nodes, as set_mempolicy(2) has them */
	TAG_TASK_ARG = 47, /* u32 rank; string, repeated: the argv of a rank that has its own */
	TAG_TASK_CWD = 48, /* u32 rank; string: where it begins, relative to TAG_CWD */
	TAG_TASK_SCRIPT = 49, /* u32 kind (SCRIPT_*); u32 seconds that it may take, 0 for any; string what it is
			       * called; string path: for every task, in this order */
	/* SETUP again: what slurm_load_job reports about the job beside what plugins can ask
	 * for */
	TAG_JOB_NAME = 50,    /* string */
	TAG_PARTITION = 51,   /* string */
	TAG_NODE_LIST = 52,   /* string */
	TAG_CLUSTER = 53,     /* string */
	TAG_SUBMIT_HOST = 54, /* string */
	TAG_BATCH = 55,	      /* u32: 1 for a batch job, 0 for another; unset it is not known */
	TAG_JOB_NNODES = 56,  /* u32: nodes of the job */
	TAG_JOB_NCPUS = 57,   /* u32: CPUs of the job on all of them */
	TAG_JOB_NTASKS = 58,  /* u32: tasks of the job */
	TAG_JOB_PER_TASK = 59, /* u32: CPUs of each */
	TAG_JOB_LIMIT = 60,   /* u32: its time limit in minutes, 0 is none */
	TAG_JOB_START = 61,   /* u64: seconds since 1970 */
	TAG_JOB_END = 62,     /* u32: how it has ended, as slurm.h numbers states; unset it runs */
	TAG_JOB_ARRAY = 63,   /* u32: the job of its array; unset it is in none */
};

enum script_kind {
	SCRIPT_PROLOG = 1, /* before exec: its output may change the task's environment */
	SCRIPT_EPILOG = 2, /* after the task's end */
};

enum join_ns {
	JOIN_NEVER = 0,
	JOIN_TASKS = 1,
	JOIN_HOST = 2,
};

enum stream_kind {
	STREAM_NULL = 0,
	STREAM_FD = 1,	 /* table index */
	STREAM_FILE = 2, /* open(path, flags | O_CLOEXEC, 0666) as the user, relative to the cwd */
	STREAM_SAME = 3, /* fd 2: as fd 1 */
	STREAM_EARLY = 4, /* as STREAM_FILE, but opened before user_init, and handed to stepd by REP_STREAM: what
			   * plugins and the node say is to stand there, too */
	STREAM_TERMINAL = 5, /* table index: as STREAM_FD; with it as fd 0 the task leads a session of its own, whose
			      * controlling terminal it is */
};

/* The board. */
#define BOARD_MAGIC 0x62737470u

/* Why a process has ended itself in the hook that its slot names. */
enum fault {
	FAULT_FATAL = 1,       /* the plugin called slurm_fatal */
	FAULT_DESCRIPTORS = 2, /* it closed descriptors of its process, or put others there */
	FAULT_USER = 3,	       /* it gave up its process's user or group for good */
	FAULT_NOFILE = 4,      /* it lowered RLIMIT_NOFILE for good, below what its process needs */
	FAULT_MISSING = 5,     /* plus n: it called symbol n, from 0, of the symbols that REP_MISSING named */
};

struct board_slot {
	_Atomic uint32_t stage;
	_Atomic int32_t error; /* errno, 0; below 0: less an enum fault */
	_Atomic uint32_t plugin;
	_Atomic uint32_t hook;	     /* NO_HOOK outside of one */
	_Atomic uint64_t since_ns;   /* CLOCK_MONOTONIC when stage or hook was entered */
};

struct board_entry {
	uint64_t start_ns;
	uint64_t end_ns; /* 0 while the hook runs */
	uint32_t rank;
	uint16_t plugin;
	uint16_t hook;
	int32_t rc;
	_Atomic uint32_t ready; /* 1: start fields are valid */
};

struct board {
	uint32_t magic;
	uint32_t version;
	uint32_t nslots; /* tasks + 1: slot 0 is the host, slot r+1 local task r */
	uint32_t nentries;
	_Atomic uint32_t next; /* entries taken; beyond nentries they are dropped */
	uint32_t reserved[11];
	/* struct board_slot slots[nslots]; struct board_entry entries[nentries]; */
};

/* clang-format on */

#endif
