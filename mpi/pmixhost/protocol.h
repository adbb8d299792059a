/* SPDX-License-Identifier: Apache-2.0
 *
 * The one source of the numbers between stepd (Go, package mpi/pmix) and
 * pmixhost (C). The Go half reads this file in a test and fails when the two
 * differ.
 *
 * One channel: a SOCK_STREAM pair, descriptor PMIXHOST_FD_CONTROL here. A frame
 * is u32 length of what follows, u32 type, u32 id, fields. Its end of file ends
 * pmixhost at once.
 *
 *     stepd                                    pmixhost
 *     SETUP {user, limits, folder} ----------> join, become the user, PMIx_server_init
 *          <---------------------------------- DONE {version}
 *     NSPACE {job info} ---------------------> PMIx_server_register_nspace
 *          <---------------------------------- DONE
 *     CLIENTS {ranks} -----------------------> register_client, setup_fork for each
 *          <---------------------------------- DONE {environment of each}
 *     (the tasks are forked and connect)
 *          <---------------------------------- UP_CONNECTED, UP_FENCE, ... {id}
 *     ANSWER {id, status, ...} --------------> the library's callback
 *     END -----------------------------------> PMIx_server_finalize; _exit(0)
 *
 * A command is answered by one DONE of its id, an upcall with an id above 0 by
 * one ANSWER. Commands may overlap with upcalls, not with each other, except
 * MODEX, NOTIFY and SYNC, whose DONE comes when the library has answered.
 *
 * All integers are little endian. A string is u32 length and that many bytes,
 * none of them 0; bytes are the same with any. A proc is string nspace, u32 rank.
 * A list is u32 count and its elements. A value is u16 type (enum value_type), u32
 * length and that many bytes: see there. An info is string key, u32 flags, value.
 */
#ifndef PMIXHOST_PROTOCOL_H
#define PMIXHOST_PROTOCOL_H

/* The comments are columns, and a test reads a constant a line. */
/* clang-format off */
#define PMIXHOST_PROTOCOL_VERSION 1

#define PMIXHOST_FD_CONTROL 3
/* The job's mount namespace, where SETUP says SETUP_JOIN_NS. */
#define PMIXHOST_FD_NAMESPACE 4

/* The longest frame: the modex of a whole step must fit in. */
#define PMIXHOST_FRAME_MAX 67108864
/* How deep arrays of arrays may go. */
#define PMIXHOST_DEPTH_MAX 8

/* stepd to host */
enum host_cmd {
	/* u32 version; u32 flags (setup_flag); u32 uid; u32 gid; list of u32 groups; u64 bytes of memory that
	 * may be mapped for data (0: no limit); string folder; string nspace and u32 rank of the server itself;
	 * list of string environment */
	CMD_SETUP = 1,
	CMD_NSPACE = 2,  /* string nspace; u32 local ranks; list of info */
	CMD_CLIENTS = 3, /* string nspace; list of u32 rank */
	CMD_DROP = 4,	 /* string nspace */
	CMD_MODEX = 5,	 /* proc: what it has put, for another node */
	CMD_NOTIFY = 6,	 /* i32 status; proc source; u32 range; list of info */
	CMD_ANSWER = 7,	 /* i32 status, and what the upcall's answer has */
	CMD_END = 8,
	CMD_SYNC = 9,	 /* DONE when the library has done what came before */
};

enum setup_flag {
	SETUP_JOIN_NS = 1,  /* descriptor PMIXHOST_FD_NAMESPACE is to be joined */
	SETUP_TOOLS = 2,    /* tools of the user may connect */
	SETUP_TOPOLOGY = 4, /* the library is to share what it knows of the machine with the tasks */
};

/* host to stepd */
enum host_rep {
	/* i32 status of the library, or -errno - 1000000 where a system call failed; string what could not be
	 * done, empty without a failure; then SETUP: string version of the library; CLIENTS: list of list of string
	 * (the environment, in the order of ranks); MODEX: bytes */
	REP_DONE = 101,

	UP_CONNECTED = 201,  /* proc. No answer */
	UP_FINALIZED = 202,  /* proc. No answer */
	UP_ABORT = 203,	     /* proc; i32 code; string text; list of proc (empty: all of its nspace). Answer: - */
	UP_FENCE = 204,	     /* list of proc; list of info; bytes. Answer: bytes */
	UP_MODEX = 205,	     /* proc; list of info. Answer: bytes */
	UP_PUBLISH = 206,    /* proc; list of (info, bytes: the value as the library packs it). Answer: - */
	UP_LOOKUP = 207,     /* proc; list of string; list of info. Answer: list of (proc, string key, bytes) */
	UP_UNPUBLISH = 208,  /* proc; list of string; list of info. Answer: - */
	UP_SPAWN = 209,	     /* proc; list of info; list of (string command, list of string argv, list of string env,
			      * string cwd, u32 tasks, list of info). Answer: string nspace */
	UP_JOIN = 210,	     /* list of proc; list of info: PMIx_Connect. Answer: - */
	UP_PART = 211,	     /* list of proc; list of info: PMIx_Disconnect. Answer: - */
	UP_NOTIFY = 212,     /* i32 status; proc source; u32 range; list of info. No answer */
	UP_QUERY = 213,	     /* proc; list of (list of string keys, list of info). Answer: list of info */
	UP_TOOL = 214,	     /* list of info. Answer: proc */
	UP_LOG = 215,	     /* proc; list of info; list of info directives. Answer: - */
	UP_CONTROL = 216,    /* proc; list of proc; list of info. Answer: list of info */
	UP_GROUP = 217,	     /* u32 op; string group; list of proc; list of info. Answer: list of info */
	UP_LOST = 218,	     /* proc: its connection ended before it had finalized. No answer */
	UP_WORD = 219,	     /* string: a line for the administrator. No answer */
};

/* A value's type has the number that the PMIx standard gives it; the bytes are,
 * where nothing else is said, the number as u64 or i64. A type that is not here
 * has no bytes and says only that there is something. */
enum value_type {
	V_UNDEF = 0,
	V_BOOL = 1,
	V_BYTE = 2,
	V_STRING = 3,	   /* the string */
	V_SIZE = 4,
	V_PID = 5,
	V_INT = 6,
	V_INT8 = 7,
	V_INT16 = 8,
	V_INT32 = 9,
	V_INT64 = 10,
	V_UINT = 11,
	V_UINT8 = 12,
	V_UINT16 = 13,
	V_UINT32 = 14,
	V_UINT64 = 15,
	V_FLOAT = 16,	   /* as V_DOUBLE */
	V_DOUBLE = 17,	   /* IEEE 754 binary64 */
	V_TIMEVAL = 18,	   /* i64 s; i64 us */
	V_TIME = 19,
	V_STATUS = 20,
	V_PROC = 22,	   /* a proc */
	V_BYTE_OBJECT = 27, /* the bytes */
	V_PERSIST = 30,
	V_SCOPE = 32,
	V_DATA_RANGE = 33,
	V_INFO_DIRECTIVES = 35,
	V_PROC_STATE = 37,
	V_PROC_INFO = 38,  /* proc; string host; string program; i64 pid; i64 exit code; u32 state */
	V_DATA_ARRAY = 39, /* u16 type of the elements; list: V_INFO infos, else values without their type */
	V_PROC_RANK = 40,
	V_INFO = 24,	   /* in arrays alone */
	V_ALLOC_DIRECTIVE = 43,
	V_ENVAR = 46,	   /* string name; string value; u32 separator */
	V_PROC_NSPACE = 60, /* the string */
};

/* Ranges of an event. */
enum event_range {
	RANGE_RM = 1,
	RANGE_LOCAL = 2,
	RANGE_NAMESPACE = 3,
	RANGE_SESSION = 4,
	RANGE_GLOBAL = 5,
	RANGE_CUSTOM = 6,
	RANGE_PROC_LOCAL = 7,
};

/* Statuses that Go uses. */
enum status {
	ST_SUCCESS = 0,
	ST_ERROR = -1,
	ST_NO_PERMISSIONS = -23,
	ST_TIMEOUT = -24,
	ST_UNREACH = -25,
	ST_BAD_PARAM = -27,
	ST_RESOURCES = -29,
	ST_NOMEM = -32,
	ST_NOT_FOUND = -46,
	ST_NOT_SUPPORTED = -47,
	ST_PARTIAL_SUCCESS = -52,
	ST_DUPLICATE_KEY = -53,
	ST_READY_FOR_DEBUG = -58,
	ST_LOST_CONNECTION = -61,
	ST_JOB_END = -145,
	ST_OPERATION_SUCCEEDED = -157,
	ST_JOB_ABORTED = -182,
	ST_LAUNCH_FAILED = -181,
};

/* Ranks that are none. */
#define RANK_WILDCARD 4294967294
#define RANK_UNDEF 4294967295
/* clang-format on */

#endif
