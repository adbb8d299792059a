package step

// WorstTask finds the task whose end is the step's: of several, the one with
// the highest code, 128+n for a signal, and of several with the same code the first. at
// is its index, -1 where all have ended well.
func WorstTask(tasks []Task) (code int, signal *int, at int) {
	at = -1
	for i := range tasks {
		t := &tasks[i]
		c := 0
		switch {
		case t.Signal != nil:
			c = 128 + *t.Signal
		case t.ExitCode != nil:
			c = *t.ExitCode
		case t.State == TaskExited:
			c = 1 // its status was lost with the host
		case t.State == TaskRunning:
			c = 1 // it does not die
		}
		if c > code {
			code, signal, at = c, t.Signal, i
		}
	}
	return code, signal, at
}
