package step

import (
	"encoding/hex"
	"path/filepath"
	"strings"
)

const (
	// SentMax bounds the files that are sent with a step, and SentSizeMax one of
	// them, in bytes.
	SentMax     = 512
	SentSizeMax = 64 << 30
	// SentChunk is the most bytes of a file in one record, before it is compressed.
	SentChunk = 32 << 10
	// LibsSuffix names the directory of a program's libraries, after it.
	LibsSuffix = "_libs"
)

// SentFile is a file that the client sends to every node before the tasks start
// (--bcast, --send-libs). The first is the program, which the tasks then run;
// the others are its libraries.
type SentFile struct {
	// Path is where the program goes, a file name pattern as of a Stream and
	// relative to Cwd; of a library it is its name.
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"` // permissions, 0 to 0777
	SHA256 string `json:"sha256"`
}

// SentPiece is the next bytes of a file that is sent.
type SentPiece struct {
	File int    // its place in Request.Sent
	Data []byte // at most SentChunk, as it is written
	LZ4  bool   // Data is one LZ4 block of that
}

func (r *Request) checkSent() error {
	if len(r.Sent) > SentMax {
		return bad("sent", "%d files: the limit is %d", len(r.Sent), SentMax)
	}
	if len(r.Sent) > 0 && len(r.Apps) > 0 {
		return bad("sent", "--bcast sends one program, and the step has %d", len(r.Apps))
	}
	if len(r.Sent) > 0 && len(r.Script) > 0 {
		return bad("sent", "a batch script is sent as it is")
	}
	for i, f := range r.Sent {
		sum, err := hex.DecodeString(f.SHA256)
		switch {
		case f.Path == "" || strings.IndexByte(f.Path, 0) >= 0 || len(f.Path) > PathMax:
			return bad("sent", "file %d: %.80q is no path", i, f.Path)
		case i > 0 && (f.Path != filepath.Base(f.Path) || f.Path == ".." || f.Path == "." || f.Path == "/"):
			return bad("sent", "library %.80q is no name of a file", f.Path)
		case f.Size < 0 || f.Size > SentSizeMax:
			return bad("sent", "file %.80q has %d bytes: want 0 to %d", f.Path, f.Size, int64(SentSizeMax))
		case f.Mode > 0o777:
			return bad("sent", "file %.80q: %#o are no permissions", f.Path, f.Mode)
		case err != nil || len(sum) != 32:
			return bad("sent", "file %.80q has no SHA-256 digest", f.Path)
		}
	}
	return nil
}

// SentProgram is where the program that the client sends goes on this node; ok is
// false where none is sent.
func (s *Spec) SentProgram() (path string, ok bool, err error) {
	if len(s.Sent) == 0 {
		return "", false, nil
	}
	if path, err = ExpandPattern(s.Sent[0].Path, s, 0); err != nil {
		return "", false, err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.Cwd, path)
	}
	return path, true, nil
}
