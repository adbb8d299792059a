package spank

import (
	"encoding/hex"
	"fmt"
	"time"
)

// Limits of a plugin stack. pluginsMax is the host's (host/config.h).
const (
	stackFileMax  = 1 << 20 // bytes of one file
	stackFilesMax = 1024    // files, each time they are included
	stackTotalMax = 8 << 20 // bytes of them together
	stackDepthMax = 16      // includes within includes
	problemsMax   = 1000
	pluginsMax    = 4096
)

// Plugin is one plugin of the stack.
type Plugin struct {
	// Path is what to dlopen: the path as written, or for a relative one the
	// first file of that name in the plugin directories. One that is in none
	// stays as written, so that dlopen says what it says in Slurm, and with a
	// slash in it is one from the root.
	Path     string
	Required bool
	// Args are the words behind the path.
	Args []string
	// File and Line are where it is written.
	File string
	Line int
}

// Stack is plugstack.conf with its includes. The zero value is an empty one.
type Stack struct {
	Plugins  []Plugin // in the order in which they are called
	Problems []Problem
	// Files are all files that were read, each once.
	Files []string
	// Sources are all paths that were looked at: files, whether they exist or
	// not, and the directories that a pattern has read. While none of them
	// changes, the stack is the same.
	Sources []string
	// Digest is of the names and the contents of Files. Two who have read the
	// same have the same one; it is no secret, and no protection.
	Digest string
}

// Severity says how much a Problem matters.
type Severity string

// The severities.
const (
	// SeverityWarning: the stack is as it is written, and may not be what is wanted.
	SeverityWarning Severity = "warning"
	// SeverityError: a line is passed over, as Slurm does.
	SeverityError Severity = "error"
)

// Problem is one finding about a line of plugstack.conf.
type Problem struct {
	Severity Severity
	File     string
	Line     int // 0 is the file as a whole
	Text     string
	Remedy   string // what to do; may be empty
}

// String is the line for the user, in Slurm's form: "spank: FILE:LINE: TEXT".
func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("spank: %s: %s", p.File, p.Text)
	}
	return fmt.Sprintf("spank: %s:%d: %s", p.File, p.Line, p.Text)
}

// stackPatience bounds the wait for processes that write the stack's files.
const stackPatience = time.Second

// ReadStack reads plugstack.conf. A file that does not exist, or "", is an
// empty stack. Lines that are no good are passed over and become Problems;
// the error says that a file cannot be read, or that the stack has no end (an
// include loop, a limit): then no step may start, for a required plugin may be
// missing from it. The grammar is Slurm 22.05.8's as measured: words
// parted by blanks, no quotes, no continuation, "#" begins a comment anywhere.
//
// A file that is being written is not read half. Where the kernel grants us
// a read lease (root, or the file's owner), a file is read while no process
// has it open for writing; a writer is waited for, at most a second in all. Elsewhere
// it is read again until it is the same before and after. In the end all files
// and patterns are looked at once more: if one has changed, all are read again.
// On an error the stack holds what was found, Sources above all.
func ReadStack(file string, pluginDirs []string) (Stack, error) {
	if file == "" {
		return Stack{}, nil
	}
	deadline := time.Now().Add(stackPatience)
	for {
		r := newStackReader(pluginDirs, deadline)
		err := r.read(file, nil)
		r.stack.Digest = hex.EncodeToString(r.digest.Sum(nil))
		changed := r.changed()
		switch {
		case changed != "" && time.Now().Before(deadline):
			continue
		case err == nil && changed != "":
			err = fmt.Errorf("%q changes all the time; write a new file and rename it into place", changed)
		}
		if err != nil {
			return r.stack, fmt.Errorf("cannot read plugin stack %q: %w", file, err)
		}
		return r.stack, nil
	}
}
