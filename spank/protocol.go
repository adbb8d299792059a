package spank

import (
	"fmt"
	"slices"

	"stepd/internal/wire"
	"stepd/step/launch"
)

// The numbers of host/protocol.h, which is their source: TestProtocolNumbers
// reads that file and fails when one differs.
const (
	hostProtocolVersion = 9

	hostFDControl = 3
	hostFDLog     = 4

	hostPacketMax = 65536
	hostFDsMax    = 200
	hostFDTable   = 16384
)

const (
	cmdSetup    = 1
	cmdLoad     = 2
	cmdInit     = 3
	cmdFDs      = 4
	cmdStep     = 5
	cmdUserInit = 6
	cmdFork     = 7
	cmdPostFork = 8
	cmdWait     = 9
	cmdExit     = 10

	cmdOption        = 11
	cmdPostOpt       = 12
	cmdLocalUserInit = 13
	cmdState         = 14
	cmdHook          = 15
)

const (
	repDone    = 101
	repPlugin  = 102
	repTasks   = 103
	repExit    = 104
	repOption  = 105
	repMissing = 106
	repState   = 107
	repStream  = 108
	repEpilog  = 109
	repRefused = 110
)

const (
	scriptProlog = 1
	scriptEpilog = 2
)

const (
	recLog     = 201
	recFail    = 202
	recWarn    = 203
	recThreads = 204
	recLimit   = 205
	recCrash   = 206
)

const (
	noRank   = 0xffffffff
	noPlugin = 0xffffffff
	noHook   = 0xffffffff
)

const (
	hookInit               = 0
	hookJobProlog          = 1
	hookInitPostOpt        = 2
	hookLocalUserInit      = 3
	hookUserInit           = 4
	hookTaskInitPrivileged = 5
	hookTaskInit           = 6
	hookTaskPostFork       = 7
	hookTaskExit           = 8
	hookJobEpilog          = 9
	hookSlurmdExit         = 10
	hookExit               = 11
	hookOption             = 12
	hookLoad               = 13
	hookBegin              = 14
	hookFini               = 15
	hookClose              = 16
	hookCount              = 17
)

// hookNames are the symbols, by number; those from hookOption on are no hooks of SPANK.
var hookNames = [hookCount]string{
	"slurm_spank_init", "slurm_spank_job_prolog", "slurm_spank_init_post_opt",
	"slurm_spank_local_user_init", "slurm_spank_user_init",
	"slurm_spank_task_init_privileged", "slurm_spank_task_init",
	"slurm_spank_task_post_fork", "slurm_spank_task_exit",
	"slurm_spank_job_epilog", "slurm_spank_slurmd_exit", "slurm_spank_exit",
	"option callback", "dlopen", "init()", launch.HookFini, launch.HookClose,
}

// Hooks are the functions that a plugin may export, in the order of their
// numbers.
func Hooks() []string { return slices.Clone(hookNames[:hookOption]) }

// hookName never fails: the number may come from a corrupted board.
func hookName(n uint32) string {
	if n < hookCount {
		return hookNames[n]
	}
	return "unknown hook"
}

// stageNames are the places where a task can be, by number.
var stageNames = [...]string{
	"none", "host", "forked", "join_container", "task_init_privileged", "become_user",
	"stdio", "gate", "task_init", "limits", "exec", "mem_policy", "task_prolog",
}

const (
	stagePrivileged = 4
	stageGate       = 7
	stageTaskInit   = 8
	stageExec       = 10
)

func stageName(n uint32) string {
	if int(n) < len(stageNames) {
		return stageNames[n]
	}
	return "unknown stage"
}

const (
	pluginLoaded     = 1
	pluginHasVersion = 2
	pluginHasSpank   = 4
	pluginHasOptions = 8
)

const (
	tagContext     = 1
	tagUID         = 3
	tagGID         = 4
	tagGroups      = 5
	tagUser        = 6
	tagJobID       = 7
	tagStepID      = 8
	tagNNodes      = 9
	tagNodeID      = 10
	tagNodeName    = 11
	tagTotalTasks  = 12
	tagGlobalIDs   = 13
	tagNCPUs       = 14
	tagCPUsPerTask = 15
	tagJobCores    = 16
	tagStepCores   = 17
	tagJobMem      = 18
	tagStepMem     = 19
	tagRestarts    = 20
	tagArrayID     = 21
	tagArrayTask   = 22
	tagArg         = 23
	tagEnv         = 24
	tagCwd         = 25
	tagUmask       = 26
	tagNoNewPrivs  = 27
	tagJoinNS      = 28
	tagPlugin      = 29
	tagPluginArg   = 30
	tagOption      = 31
	tagHostEnv     = 32
	tagOOMScore    = 33
	tagJobControl  = 34

	tagStream    = 40
	tagTaskEnv   = 41
	tagTaskFD    = 42
	tagEnvSet    = 43
	tagEnvUnset  = 44
	tagExitEnv   = 45
	tagMemPolicy = 46
	tagTaskArg   = 47
	tagTaskCwd   = 48

	tagTaskScript = 49

	tagJobName    = 50
	tagPartition  = 51
	tagNodeList   = 52
	tagCluster    = 53
	tagSubmitHost = 54
	tagBatch      = 55
	tagJobNNodes  = 56
	tagJobNCPUs   = 57
	tagJobNTasks  = 58
	tagJobPerTask = 59
	tagJobLimit   = 60
	tagJobStart   = 61
	tagJobEnd     = 62
	tagJobArray   = 63
)

// Why a process has ended itself in a hook: the board's error, negative.
const (
	faultFatal       = 1
	faultDescriptors = 2
	faultUser        = 3
	faultNofile      = 4
	faultMissing     = 5 // plus the number of the symbol in Loaded.Missing
)

const (
	joinNever = 0
	joinTasks = 1
	joinHost  = 2
)

const (
	boardMagic     = 0x62737470
	boardHeader    = 64
	boardSlotSize  = 24
	boardEntrySize = 32
)

// writer appends fields in the form of host/protocol.h.
type writer struct{ wire.Writer }

// tlv appends one config item; fill writes its body.
func (w *writer) tlv(tag uint16, fill func(*writer)) {
	w.U16(tag)
	w.U16(0)
	w.Sized(func() { fill(w) })
}

func (w *writer) tlvU32(tag uint16, v uint32) { w.tlv(tag, func(w *writer) { w.U32(v) }) }
func (w *writer) tlvU64(tag uint16, v uint64) { w.tlv(tag, func(w *writer) { w.U64(v) }) }
func (w *writer) tlvStr(tag uint16, s string) { w.tlv(tag, func(w *writer) { w.Str(s) }) }
func (w *writer) tlvStrs(tag uint16, all []string) {
	for _, s := range all {
		w.tlvStr(tag, s)
	}
}

func (w *writer) tlvU32s(tag uint16, vs []uint32) {
	w.tlv(tag, func(w *writer) {
		for _, v := range vs {
			w.U32(v)
		}
	})
}

// reader takes fields from a record.
type reader struct{ wire.Reader }

func (r *reader) i32() int32 { return int32(r.U32()) }
func (r *reader) i64() int64 { return int64(r.U64()) }

func (r *reader) str() string {
	n := r.U32()
	if n > hostPacketMax {
		r.Err = fmt.Errorf("string of %d bytes in a record: the limit is %d", n, hostPacketMax)
		return ""
	}
	return string(r.Take(int(n)))
}
