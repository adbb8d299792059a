package step

import (
	"strconv"
)

// GresRequest is one entry of --gres: "gpu:a100:2". It counts for each node.
type GresRequest struct {
	Name string `json:"name"`
	// Type is the model, "" for any.
	Type string `json:"type,omitempty"`
	// Count may be 0: the step then has none of the job's.
	Count uint64 `json:"count"`
}

// String is the entry as a user writes it, without a suffix: "gpu:a100:2".
func (g GresRequest) String() string {
	if g.Type == "" {
		return g.Name + ":" + strconv.FormatUint(g.Count, 10)
	}
	return g.Name + ":" + g.Type + ":" + strconv.FormatUint(g.Count, 10)
}

// GresAlloc is a job's or a step's share of one generic resource.
type GresAlloc struct {
	Name  string `json:"name"`
	Type  string `json:"type,omitempty"`
	Count uint64 `json:"count"`
	// Index are the numbers of its devices, ascending; nil where it has no files.
	Index []int `json:"index,omitempty"`
}

func (a GresAlloc) String() string {
	s := a.Name
	if a.Type != "" {
		s += ":" + a.Type
	}
	s += ":" + strconv.FormatUint(a.Count, 10)
	if len(a.Index) > 0 {
		s += "(IDX:" + FormatCPUList(a.Index) + ")"
	}
	return s
}
