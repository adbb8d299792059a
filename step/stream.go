package step

// StreamKind is the kind of destination of one of a task's three standard streams.
type StreamKind string

const (
	// StreamClient: descriptors that the client attaches to stepd's socket.
	StreamClient StreamKind = "client"
	// StreamNull: /dev/null.
	StreamNull StreamKind = "null"
	// StreamFile: a file that each task opens as the user, by Pattern.
	StreamFile StreamKind = "file"
	// StreamSame: stderr only: the same open file as stdout.
	StreamSame StreamKind = "same"
)

// Stream describes one standard stream of all tasks.
type Stream struct {
	Kind StreamKind `json:"kind"`
	// Pattern is srun's file name pattern (%j %J %s %t %n %N %u %x %A %a %%).
	Pattern string `json:"pattern,omitempty"`
	// Rank restricts the stream to one task; the others get /dev/null.
	Rank *int `json:"rank,omitempty"`
	// Append opens with O_APPEND alone; without it the file is truncated first.
	Append bool `json:"append,omitempty"`
}

// Terminal asks for a terminal for rank 0 (--pty): its three streams are that
// terminal, which belongs to stepd and outlives the client. The other ranks have
// /dev/null, as in Slurm.
type Terminal struct {
	// Rows and Cols are the window's size in the beginning; 0 is not known.
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
	// Chars are the control characters of the client's terminal, as c_cc of termios(3)
	// has them on Linux; empty are the kernel's.
	Chars []byte `json:"chars,omitempty"`
	// UTF8 says that it erases characters, not bytes (IUTF8).
	UTF8 bool `json:"utf8,omitempty"`
}

// StreamTerminal is the Kind of an OutputPlace that is a terminal of the step's.
const StreamTerminal StreamKind = "terminal"

// OutputPlace is the destination of one of the tasks' streams, in a Record.
type OutputPlace struct {
	// Kind is the Stream's, or StreamTerminal.
	Kind StreamKind `json:"kind"`
	// Pattern is the files', absolute.
	Pattern string `json:"pattern,omitempty"`
	// Rank is the one task that has the stream, nil is all.
	Rank *int `json:"rank,omitempty"`
}

// OutputPlaces returns the destinations of the tasks' stdout and stderr.
func (s *Spec) OutputPlaces() (stdout, stderr *OutputPlace) {
	if s.Terminal != nil {
		zero := 0
		return &OutputPlace{Kind: StreamTerminal, Rank: &zero}, &OutputPlace{Kind: StreamTerminal, Rank: &zero}
	}
	place := func(st Stream) *OutputPlace {
		p := &OutputPlace{Kind: st.Kind, Pattern: st.Pattern, Rank: st.Rank}
		if p.Pattern != "" && p.Pattern[0] != '/' {
			p.Pattern = s.Cwd + "/" + p.Pattern
		}
		return p
	}
	return place(s.Stdout), place(s.Stderr)
}
