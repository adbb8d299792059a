package step

import (
	"slices"
	"strconv"
	"strings"
)

// App is one command of a step that has several (--multi-prog,
// MPI_Comm_spawn_multiple). What is in it may be any bytes but NUL.
type App struct {
	NTasks int      `json:"ntasks"` // at least 1
	Argv   [][]byte `json:"argv"`
	Env    [][]byte `json:"env,omitempty"` // NAME=VALUE, set over the step's for these tasks
	// Cwd is where these tasks begin, relative to the step's; empty is the step's.
	Cwd []byte `json:"cwd,omitempty"`
	// Offset is not nil where Argv has %t for the task's rank and %o for its place
	// among those that the command is for: of the first task here it is Offset.
	Offset *int `json:"offset,omitempty"`
}

// Words is the command of the task that is the nth of the app, from 0, and has a
// rank. common is Words(a.Argv): what no task has of its own is shared with it.
func (a *App) Words(common []string, rank, nth int) []string {
	own := func(w string) bool { return strings.IndexByte(w, '%') >= 0 }
	if a.Offset == nil || !slices.ContainsFunc(common, own) {
		return common
	}
	words := slices.Clone(common)
	for i, w := range words {
		words[i] = expandTask(w, rank, *a.Offset+nth)
	}
	return words
}

// expandTask replaces %t and %o; %% is one %, and any other % stays as it is.
func expandTask(word string, rank, offset int) string {
	if strings.IndexByte(word, '%') < 0 {
		return word
	}
	var b strings.Builder
	b.Grow(len(word) + 16)
	for i := 0; i < len(word); i++ {
		if word[i] != '%' || i+1 == len(word) {
			b.WriteByte(word[i])
			continue
		}
		i++
		switch word[i] {
		case 't':
			b.WriteString(strconv.Itoa(rank))
		case 'o':
			b.WriteString(strconv.Itoa(offset))
		case '%':
			b.WriteByte('%')
		default:
			b.WriteByte('%')
			b.WriteByte(word[i])
		}
	}
	return b.String()
}

// AppOf is the index of the command that the task of a rank runs: 0 where the
// step has one for all.
func (r *Request) AppOf(rank int) int {
	for i := range r.Apps {
		if rank -= r.Apps[i].NTasks; rank < 0 {
			return i
		}
	}
	return 0
}

// Words are byte strings as text: what JSON cannot hold is in there as it is.
func Words(list [][]byte) []string {
	if list == nil {
		return nil
	}
	words := make([]string, len(list))
	for i, b := range list {
		words[i] = string(b)
	}
	return words
}

// Raw is the opposite of Words.
func Raw(words []string) [][]byte {
	if words == nil {
		return nil
	}
	list := make([][]byte, len(words))
	for i, w := range words {
		list[i] = []byte(w)
	}
	return list
}
