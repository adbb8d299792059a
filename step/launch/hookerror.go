package launch

import (
	"cmp"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// What is called at the end of a plugin, as a HookError names it: nothing that it does there
// changes how the step has ended.
const (
	HookFini  = "fini()"
	HookClose = "dlclose" // destructors and atexit handlers
)

// Unloading reports whether the plugin was at its end.
func (e *HookError) Unloading() bool { return e.Hook == HookFini || e.Hook == HookClose }

// HookError says that a SPANK hook failed: by its return code, or by what
// happened to the process while it ran.
type HookError struct {
	Plugin   string // base name of the file
	Path     string // the file, "" where it is not known
	Hook     string // "slurm_spank_task_init"
	Rank     *int   // nil in the host itself
	Required bool
	// RC is the hook's return code where it returned.
	RC *int
	// Cause says what happened where it did not return: "killed by SIGSEGV".
	Cause string
	// Exit is n where the hook of a session has called exit(n), else nil.
	Exit *int
}

func (e *HookError) Error() string {
	where := fmt.Sprintf("plugin %q: %s", e.Plugin, e.Hook)
	if e.Rank != nil {
		where += fmt.Sprintf(" (rank %d)", *e.Rank)
	}
	if e.RC != nil {
		return fmt.Sprintf("%s: failed with rc=%d", where, *e.RC)
	}
	return where + ": " + e.Cause
}

// CauseFirst is HookError's text in the order for a short line: the place of a crash first, then the
// hook and the ranks, by default the text's own. The symbols at that place, and what else stands in
// brackets, are detail. Another text stays as it is.
func CauseFirst(text, ranks string) (first, detail string) {
	plugin, rest, ok := strings.Cut(strings.TrimPrefix(text, "plugin "), ": ")
	hook, how, ok2 := strings.Cut(rest, ": ")
	if !ok || !ok2 || !strings.HasPrefix(text, "plugin ") {
		return text, ""
	}
	hook, rank, _ := strings.Cut(hook, " (")
	if ranks = cmp.Or(ranks, strings.TrimSuffix(rank, ")")); ranks != "" {
		ranks = ", " + ranks
	}
	how, detail = brackets(how)
	if !strings.HasPrefix(how, "killed by ") {
		return fmt.Sprintf("%s: %s%s: %s", plugin, hook, ranks, how), detail
	}
	if detail != "" {
		detail = "there: " + detail
	}
	if strings.Contains(how, strings.Trim(plugin, `"`)+"+0x") { // the place names the plugin
		return fmt.Sprintf("%s in %s%s", how, hook, ranks), detail
	}
	return fmt.Sprintf("%s in %s: %s%s", how, plugin, hook, ranks), detail
}

// brackets takes what stands in brackets out of a text.
func brackets(text string) (rest, in string) {
	var all []string
	for {
		before, after, ok := strings.Cut(text, " (")
		inside, after, closed := strings.Cut(after, ")")
		if !ok || !closed {
			return rest + text, strings.Join(all, ", called at ")
		}
		rest, text, all = rest+before, after, append(all, inside)
	}
}

// lookupStatus is ld.so's exit status where it cannot bind a call.
const lookupStatus = 127

// HookEnd says how a process has ended inside a hook, for HookError.Cause.
func HookEnd(st step.ExitStatus) string {
	if sig, ok := st.Signaled(); ok {
		return "killed by " + cmp.Or(unix.SignalName(sig), fmt.Sprintf("signal %d", int(sig)))
	}
	code, _ := st.Exited()
	text := fmt.Sprintf("called exit(%d)", code)
	if code == lookupStatus {
		text += ", as ld.so does where a function is missing"
	}
	return text
}
