package integration

// ends are the ends that a point may come to. Where the tasks have ended already a
// kill may come too late to change anything.
func (f *faultRun) ends() []faultEnd {
	own := faultEnd{[]string{"FAILED"}, []string{"exit code 7"}, []int{7}}
	killed := func(words ...string) faultEnd { return faultEnd{[]string{"FAILED"}, words, []int{1}} }
	var ends []faultEnd
	switch f.victim {
	case "stepd":
		lost := killed("stepd", "SIGKILL")
		if f.kind.job {
			lost.states = []string{"NODE_FAIL"}
		}
		ends = append(ends, lost)
	case "spankhost":
		if f.at.hook == "" {
			ends = append(ends, killed("spankhost", "SIGKILL"))
		} else { // no program can tell if the plugin did that
			ends = append(ends, killed("rude.so", f.at.hook, "SIGKILL"))
			if !inChild(f.at.hook) { // else it was in none itself
				return ends
			}
			ends = append(ends, killed("spankhost", "SIGKILL"))
		}
	case "prolog":
		return []faultEnd{{[]string{"FAILED"}, []string{"prolog", "SIGKILL"}, []int{182}}}
	case "task-prolog":
		return []faultEnd{killed("exit code 1")}
	case "pmixhost":
		ends = append(ends, killed(f.victim))
	case "noded":
		lost := faultEnd{[]string{"NODE_FAIL"}, []string{"noded"}, []int{1}}
		if f.at.script == "prolog" && f.kind.job {
			return []faultEnd{lost}
		}
		if f.at.phase == phaseEarly && f.kind.job { // unless it has started stepd meanwhile
			return []faultEnd{lost, own}
		}
		// Where it has started stepd, the client may not have its reply, and gives up.
		gone := faultEnd{[]string{"CANCELLED"}, []string{"client"}, []int{1}}
		if f.at.phase == phaseEarly {
			return []faultEnd{{[]string{"FAILED", "CANCELLED"}, []string{"noded"}, []int{1}}, own, gone}
		}
		if f.at.name == "state STARTING" && !f.kind.job {
			return []faultEnd{own, gone}
		}
		return []faultEnd{own}
	case "stepctl":
		own.codes = []int{137} // its own
		if f.at.phase == phaseEnding {
			own.codes = append(own.codes, 7) // the kill came too late
		}
		if f.kind.job {
			return []faultEnd{own}
		}
		if f.kind.name == "step of an allocation" { // the job ends with its client, and that may be first
			ends = append(ends, faultEnd{[]string{"CANCELLED"}, []string{"client"}, []int{137}})
		}
		gone := faultEnd{[]string{"CANCELLED"}, []string{"client"}, []int{137}}
		switch {
		case f.at.script == "prolog":
			return []faultEnd{gone}
		case f.at.phase != phaseEnding: // its end may be seen after the gate has opened
			return []faultEnd{own, gone}
		case f.at.name == "task_exit": // and one task end before the next one has exec'd
			ends = append(ends, gone)
		}
	}
	if f.at.phase == phaseEnding {
		// The client gets the end from stepd, which may die before noded has it.
		told := faultEnd{[]string{"FAILED"}, []string{f.victim}, own.codes}
		ends = append(ends, own, told)
	}
	return ends
}
