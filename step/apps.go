package step

import (
	"slices"
	"strconv"
	"strings"
)

// App is one command of a step that has several (--multi-prog,
// MPI_Comm_spawn_multiple). Its words may be any bytes but NUL.
type App struct {
	NTasks int      `json:"ntasks"` // at least 1
	Argv   [][]byte `json:"argv"`
	Env    [][]byte `json:"env,omitempty"` // NAME=VALUE, set over the step's for these tasks
	// Cwd is the tasks' working directory, relative to the step's; empty is the step's.
	Cwd []byte `json:"cwd,omitempty"`
	// Offset is not nil where Argv has %t for a task's rank and %o for its place among
	// the tasks of its line of --multi-prog. Offset is the first task's place.
	Offset *int `json:"offset,omitempty"`
}

// Words is the command of the app's nth task, from 0, which has this rank. common is
// Words(a.Argv): a command without %t and %o is common itself, not a copy.
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

// AppOf is the index in Apps of the command that a rank runs: 0 where the step has
// one command for all.
func (r *Request) AppOf(rank int) int {
	for i := range r.Apps {
		if rank -= r.Apps[i].NTasks; rank < 0 {
			return i
		}
	}
	return 0
}

// Words are byte strings as Go strings, with bytes that are no text kept as they are.
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
