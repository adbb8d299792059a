package pmix

import "fmt"

// The numbers of pmixhost/protocol.h; a test compares them.
const (
	pmixhostProtocolVersion = 1
	pmixhostFDControl       = 3
	pmixhostFDNamespace     = 4
	pmixhostFrameMax        = 67108864
	pmixhostDepthMax        = 8
)

const (
	cmdSetup   = 1
	cmdNspace  = 2
	cmdClients = 3
	cmdModex   = 5
	cmdNotify  = 6
	cmdAnswer  = 7
	cmdSync    = 9
)

const (
	setupJoinNS   = 1
	setupTools    = 2
	setupTopology = 4
)

const (
	repDone = 101

	upConnected = 201
	upFinalized = 202
	upAbort     = 203
	upFence     = 204
	upModex     = 205
	upPublish   = 206
	upLookup    = 207
	upUnpublish = 208
	upSpawn     = 209
	upJoin      = 210
	upPart      = 211
	upNotify    = 212
	upQuery     = 213
	upTool      = 214
	upLog       = 215
	upControl   = 216
	upGroup     = 217
	upLost      = 218
	upWord      = 219
)

// Types of values, as the PMIx standard numbers them.
const (
	vUndef      = 0
	vBool       = 1
	vByte       = 2
	vString     = 3
	vSize       = 4
	vPID        = 5
	vInt        = 6
	vInt8       = 7
	vInt16      = 8
	vInt32      = 9
	vInt64      = 10
	vUint       = 11
	vUint8      = 12
	vUint16     = 13
	vUint32     = 14
	vUint64     = 15
	vTimeval    = 18
	vTime       = 19
	vStatus     = 20
	vProc       = 22
	vInfo       = 24
	vByteObject = 27
	vPersist    = 30
	vScope      = 32
	vDataRange  = 33
	vProcState  = 37
	vProcInfo   = 38
	vDataArray  = 39
	vProcRank   = 40
	vEnvar      = 46
	vProcNspace = 60
)

// Ranges of an event.
const (
	rangeRM        = 1
	rangeLocal     = 2
	rangeNamespace = 3
	rangeSession   = 4
	rangeProcLocal = 7
)

// Statuses are the PMIx standard's.
const (
	stSuccess        = 0
	stError          = -1
	stNoPermissions  = -23
	stTimeout        = -24
	stUnreach        = -25
	stBadParam       = -27
	stResources      = -29
	stNomem          = -32
	stNotFound       = -46
	stNotSupported   = -47
	stPartialSuccess = -52
	stDuplicateKey   = -53
	stReadyForDebug  = -58
	stLostConnection = -61
	stLaunchFailed   = -181
	stJobAborted     = -182
)

const (
	rankWildcard = 4294967294
	rankUndef    = 4294967295
)

// statusText is what a status of the library's means.
func statusText(status int) string {
	if text, ok := map[int]string{
		stError: "error", stNoPermissions: "no permission", stTimeout: "timeout", stUnreach: "unreachable",
		stBadParam: "bad parameter", stResources: "out of resources", -31: "not initialized", stNomem: "out of memory",
		stNotFound: "not found", stNotSupported: "not supported", stPartialSuccess: "partial success",
		stDuplicateKey: "the key exists", stLostConnection: "connection lost",
	}[status]; ok {
		return fmt.Sprintf("%s (PMIx status %d)", text, status)
	}
	return fmt.Sprintf("PMIx status %d", status)
}
