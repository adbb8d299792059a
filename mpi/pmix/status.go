package pmix

import "fmt"

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
