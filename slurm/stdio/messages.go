package stdio

import "stepd/step"

// sayMax bounds the step's own messages that wait for srun.
const sayMax = 256 << 10

// wholeStep stands for the task of a message that concerns no single one.
const wholeStep = -1

// message is a line of the step's own.
type message struct {
	task int
	text []byte
}

// voices are where the step's own messages go. New sets them.
type voices struct {
	by      kind    // the stream that has them
	newline string  // behind each
	first   *output // the first task's; nil where no task here has it by here
	// srun is the header of messages for srun where the tasks have no such stream to it, and
	// extra says that srun waits for an end of it, which is no task's.
	srun  header
	extra bool
}

func (s *Streams) makeVoices() {
	v := &s.loop.voices
	v.by, v.newline = stderr, "\n"
	if s.terminal != nil {
		v.newline = "\r\n" // as a terminal writes it
	}
	if s.cfg.Streams[2].Kind == step.StreamSame || s.terminal != nil {
		v.by = stdout
	}
	if len(s.cfg.Ranks) > 0 {
		v.srun = header{kind: stderr, rank: uint16(s.cfg.Ranks[0])}
	}
	v.first = s.loop.voice(wholeStep)
	toSrun := v.first != nil && !v.first.labelled
	v.extra = !toSrun && len(s.cfg.Ranks) > 0 && s.cfg.Streams[v.by].Kind != step.StreamNull
	if v.first != nil {
		v.first.last = true
	}
}

// Speaks reports whether the step's own messages go by here.
func (s *Streams) Speaks() bool { return s.loop.voices.first != nil }

// Say sends a line of the step's own after what the first task has written to stderr so far:
// to srun, or to the file with its labels. It goes to srun as well where stderr does not go by
// here, and nowhere where there is none (-e none). It is dropped where srun takes too little for
// too long.
func (s *Streams) Say(line string) { s.loop.say(wholeStep, line) }

// SayTask is Say for a line that concerns one task: it is the task's stderr.
func (s *Streams) SayTask(rank int, line string) { s.loop.say(rank, line) }

// say queues a line.
func (l *loop) say(task int, line string) {
	if l.voices.first == nil && !l.voices.extra {
		return
	}
	l.mu.Lock()
	if l.saidSize < sayMax {
		l.said = append(l.said, message{task, append([]byte(line), l.voices.newline...)})
		l.saidSize += len(line) + spanCost
	}
	l.mu.Unlock()
	l.wakeUp()
}

// voice is the output that has a task's messages; else the first task's, nil without one.
func (l *loop) voice(task int) *output {
	for _, o := range l.outs {
		if o.kind == l.voices.by && (task == wholeStep || o.task == task) {
			return o
		}
	}
	return l.voices.first
}

// speak puts the step's own messages into frames, or into labelled files, which the tasks may
// not have yet.
func (l *loop) speak() {
	waiting := l.saying[:0]
	for _, m := range l.saying {
		o := l.voice(m.task)
		switch {
		case o != nil && o.file != nil:
			_ = l.toFile(o, m.text, true) // which is a whole line
			l.emit(o, o.header, m.text, false)
		case o != nil && o.labelled && l.at < finishing:
			waiting = append(waiting, m)
		case o != nil && !o.labelled:
			l.emit(o, o.header, m.text, false)
		default:
			l.emit(nil, l.voices.srun, m.text, false)
		}
	}
	clear(l.saying[len(waiting):])
	l.saying = waiting
}
