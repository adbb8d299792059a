package pmi2

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// serve1 answers a PMI-1 rank, line by line, until its end.
func (p *Plugin) serve1(r *rank, in *reader) error {
	read := func() (message, error) {
		text, err := in.line()
		if err != nil {
			return message{}, err
		}
		m, err := parseLine(text, p.conf.Attributes)
		if err == nil && m.multi {
			return p.readBlock(m, in)
		}
		return m, err
	}
	return p.answerAll(r, read, p.command1, func(m message, why *refusal) []byte { return error1(answer1(m.cmd), why) })
}

// readBlock reads the lines of a multi-line command, up to endcmd.
func (p *Plugin) readBlock(m message, in *reader) (message, error) {
	for bytes := 0; ; {
		text, err := in.line()
		if err != nil {
			return message{}, err
		}
		if text == "endcmd" {
			return m, nil
		}
		if bytes += len(text); bytes > p.conf.FrameBytes {
			return message{}, fmt.Errorf("cannot read PMI-1 %s: more than %d bytes (PMI2FrameBytes)", quote(m.cmd), p.conf.FrameBytes)
		}
		if len(m.pairs) == p.conf.Attributes {
			return message{}, fmt.Errorf("cannot read PMI-1 %s: more than %d lines (PMI2Attributes)", quote(m.cmd), p.conf.Attributes)
		}
		attr, err := parseBlockLine(text)
		if err != nil {
			return message{}, err
		}
		m.pairs = append(m.pairs, attr)
	}
}

// command1 carries out one PMI-1 command. An error cuts the rank off.
func (p *Plugin) command1(r *rank, m message) error {
	switch phase := p.state.phaseOf(r); {
	case phase == phaseFinalized || phase == phaseAborted:
		return fmt.Errorf("PMI-1 command %s %s", quote(m.cmd), phase)
	case (phase == phaseReady) == (m.cmd == "init"):
		p.send(r, error1(answer1(m.cmd), refuse(codeInit, "command %s is out of order: %s", quote(m.cmd), phase)))
		return nil
	}
	switch m.cmd {
	case "put", "get":
		p.store1(r, m)
	case "publish_name", "unpublish_name", "lookup_name":
		p.names1(r, m)
	case "spawn":
		p.spawn1(r, m)
	case "barrier_in":
		out, why := p.state.enter(r, kindFence, entry{})
		if why != nil {
			// PMI-1 has one thread and no way to refuse a barrier: an answer
			// now would be taken for the end of the barrier.
			return fmt.Errorf("cannot enter PMI-1 barrier: %s", why.text)
		}
		p.settle(out)
	case "abort":
		p.abort1(r, m)
	case "finalize":
		out := p.state.advance(r, phaseFinalized)
		p.send(r, ok1(m.cmd))
		p.settle(out)
	default:
		p.send(r, p.info1(r, m))
	}
	return nil
}

// info1 answers the commands that only ask.
func (p *Plugin) info1(r *rank, m message) []byte {
	switch m.cmd {
	case "init":
		p.settle(p.state.advance(r, phaseReady))
		return line1("response_to_init", pair{"pmi_version", "1"}, pair{"pmi_subversion", "1"}, pair{"rc", "0"})
	case "get_maxes":
		return ok1(m.cmd,
			pair{"kvsname_max", "256"}, // hydra's value
			pair{"keylen_max", itoa(p.conf.KeyBytes1)},
			pair{"vallen_max", itoa(p.conf.ValueBytes)})
	case "get_appnum":
		return ok1(m.cmd, pair{"appnum", itoa(r.app)})
	case "get_my_kvsname":
		return ok1(m.cmd, pair{"kvsname", p.state.jobID})
	case "get_universe_size":
		return ok1(m.cmd, pair{"size", itoa(p.state.universe)})
	}
	p.log(r, "unknown PMI-1 command "+quote(m.cmd))
	return error1(answer1(m.cmd), refuse(codeOther, "unknown command"))
}

// store1 carries out what touches the key value space.
func (p *Plugin) store1(r *rank, m message) {
	key, _ := m.get("key")
	if kvs, ok := m.get("kvsname"); ok && kvs != p.state.jobID {
		p.send(r, error1(answer1(m.cmd), refuse(codeArgument, "key value space %s is not this step's", quote(kvs))))
		return
	}
	if m.cmd == "put" {
		value, _ := m.get("value")
		if why := p.state.put(r, key, value); why != nil {
			p.send(r, error1(answer1(m.cmd), why))
			return
		}
		p.send(r, ok1(m.cmd))
		return
	}
	text, ok := p.state.lookup(r, key)
	if !ok {
		p.send(r, error1(answer1(m.cmd), refuse(codeKey, "key not found"), pair{"value", "unknown"}))
		return
	}
	p.send(r, ok1(m.cmd, pair{"value", text}))
}

// names1 carries out name publishing, by noded. The names of the answers'
// attributes are the attributes that MPICH reads.
func (p *Plugin) names1(r *rank, m message) {
	service, _ := m.get("service")
	port, _ := m.get("port")
	cmd := m.cmd
	refused := func(why *refusal) []byte { return error1(answer1(cmd), why, pair{"info", "fail"}) }
	why := p.later(r, func(ctx context.Context) []byte {
		var why *refusal
		good := []pair{{"info", "ok"}}
		switch cmd {
		case "publish_name":
			why = p.publish(ctx, 1, service, port)
		case "unpublish_name":
			why = p.unpublish(ctx, service)
		default:
			var found string
			found, why = p.resolve(ctx, service)
			good = append(good, pair{"port", found})
		}
		if why != nil {
			return refused(why)
		}
		return ok1(cmd, good...)
	})
	if why != nil {
		p.send(r, refused(why))
	}
}

// spawn1 takes a block of a spawn, and carries it out with the last one.
func (p *Plugin) spawn1(r *rank, m message) {
	if r.spawning == nil {
		r.spawning = &spawnRequest{}
	}
	s := r.spawning
	whole, err := s.take1(m, &p.conf)
	why := p.state.hold(s)
	switch {
	case err != nil:
		r.spawning = nil
		why = refuse(codeArgument, "%v", err)
		p.log(r, err.Error())
	case why != nil:
		r.spawning = nil
	case !whole:
		return
	default:
		r.spawning = nil
		if why = s.checkPreput(p.state, 1); why == nil {
			why = p.later(r, func(ctx context.Context) []byte {
				defer p.state.release(s)
				id, errs, why := p.spawn(ctx, r, s)
				codes := pair{"errcodes", errorCodes(errs)}
				switch {
				case why != nil:
					return error1("spawn_result", why, codes)
				case codes.value == "":
					return ok1("spawn", pair{"jobid", id})
				}
				return ok1("spawn", pair{"jobid", id}, codes)
			})
		}
	}
	if why != nil {
		p.state.release(s)
		p.send(r, error1("spawn_result", why))
	}
}

// abort1 ends the step: MPI_Abort.
func (p *Plugin) abort1(r *rank, m message) {
	code, ok := m.number("exitcode")
	if !ok {
		code = 1
	}
	text, _ := m.get("message")
	p.settle(p.state.askedToAbort(r, code, text))
}

// unknownSlack is slackOf of a client that has sent no frame yet.
const unknownSlack = -1

// serve2 answers a PMI-2 rank, frame by frame, until its end. Its client may
// have threads: a request that waits, a fence or an attribute, is answered
// later and holds up no other.
func (p *Plugin) serve2(r *rank, in *reader) error {
	slack := unknownSlack
	read := func() (message, error) {
		text, err := in.frame()
		if err != nil {
			return message{}, err
		}
		if slack == unknownSlack {
			slack = slackOf(text)
		}
		return parseFrame(trimSlack(text, slack), p.conf.Attributes)
	}
	return p.answerAll(r, read, p.command2, func(m message, why *refusal) []byte { return error2(m, why) })
}

// command2 carries out one PMI-2 command. An error cuts the rank off.
func (p *Plugin) command2(r *rank, m message) error {
	switch phase := p.state.phaseOf(r); {
	case phase == phaseFinalized || phase == phaseAborted:
		return fmt.Errorf("PMI-2 command %s %s", quote(m.cmd), phase)
	case (phase == phaseReady) == (m.cmd == "fullinit") && m.cmd != "abort":
		p.send(r, error2(m, refuse(codeInit, "command %s is out of order: %s", quote(m.cmd), phase)))
		return nil
	}
	var answer []byte
	var why *refusal
	switch m.cmd {
	case "abort":
		p.abort2(r, m)
		return nil
	case "finalize":
		out := p.state.advance(r, phaseFinalized)
		p.send(r, respond2(m))
		p.settle(out)
		return nil
	case "kvs-fence":
		why = p.enter2(r, kindFence, entry{m: m.stub()})
	case "ring":
		why = p.ring2(r, m)
	case "fullinit":
		answer, why = p.fullinit(r, m)
	case "kvs-put", "kvs-get", "info-putnodeattr", "info-getnodeattr", "info-getjobattr":
		answer, why = p.store2(r, m)
	case "name-publish", "name-unpublish", "name-lookup":
		why = p.names2(r, m)
	case "spawn":
		why = p.spawn2(r, m)
	case "job-getid":
		answer = respond2(m, pair{"jobid", p.state.jobID})
	case "job-connect", "job-disconnect":
		why = refuse(codeOther, "%s is not supported by mpi/pmi2", m.cmd)
		p.log(r, why.text)
	default:
		why = refuse(codeOther, "unknown command")
		p.log(r, "unknown PMI-2 command "+quote(m.cmd))
	}
	if why != nil {
		answer = error2(m, why)
	}
	if answer != nil {
		p.send(r, answer)
	}
	return nil
}

// fullinit checks that the rank is who its socket says, and sends it the rest.
func (p *Plugin) fullinit(r *rank, m message) ([]byte, *refusal) {
	if claim, ok := m.get("pmirank"); ok && claim != itoa(r.n) {
		why := refuse(codeArgument, "rank %d claims to be rank %s", r.n, quote(claim))
		p.log(r, why.text)
		return nil, why
	}
	if claim, ok := m.get("pmijobid"); ok && claim != p.state.jobID {
		why := refuse(codeArgument, "rank %d claims to be of job %s, not %s", r.n, quote(claim), p.state.jobID)
		p.log(r, why.text)
		return nil, why
	}
	p.settle(p.state.advance(r, phaseReady))
	told := []pair{
		{"pmi-version", "2"}, {"pmi-subversion", "0"},
		{"rank", itoa(r.n)}, {"size", itoa(p.state.size)}, {"appnum", itoa(r.app)},
	}
	if p.state.spawner != "" {
		told = append(told, pair{"spawner-jobid", p.state.spawner})
	}
	return respond2(m, append(told, pair{"debugged", bool2(false)}, pair{"pmiverbose", bool2(false)})...), nil
}

// store2 carries out what touches keys and attributes.
func (p *Plugin) store2(r *rank, m message) ([]byte, *refusal) {
	key, _ := m.get("key")
	text, _ := m.get("value")
	switch m.cmd {
	case "kvs-put":
		if why := p.state.put(r, key, text); why != nil {
			return nil, why
		}
		return respond2(m), nil
	case "info-putnodeattr":
		out, why := p.state.putAttr(r, key, text)
		if why != nil {
			return nil, why
		}
		p.settle(out)
		return respond2(m), nil
	case "info-getnodeattr":
		wait, _ := m.get("wait")
		return p.state.getAttr(r, m, key, wait == bool2(true))
	case "info-getjobattr":
		text, ok := p.state.jobAttr(key)
		return found2(m, text, ok), nil
	}
	if job, _ := m.get("jobid"); job != "" && job != p.state.jobID {
		return nil, refuse(codeArgument, "job %s is not this step", quote(job))
	}
	text, ok := p.state.lookup(r, key)
	return found2(m, text, ok), nil
}

func found2(m message, text string, ok bool) []byte {
	if !ok {
		return respond2(m, pair{"found", bool2(false)})
	}
	return respond2(m, pair{"found", bool2(true)}, pair{"value", text})
}

// names2 carries out name publishing, by noded.
func (p *Plugin) names2(r *rank, m message) *refusal {
	name, _ := m.get("name")
	port, _ := m.get("port")
	m = m.stub()
	return p.later(r, func(ctx context.Context) []byte {
		var why *refusal
		var good []pair
		switch m.cmd {
		case "name-publish":
			why = p.publish(ctx, 2, name, port)
		case "name-unpublish":
			why = p.unpublish(ctx, name)
		default:
			var found string
			found, why = p.resolve(ctx, name)
			// Slurm's client reads value, newer MPICH port.
			good = []pair{{"value", found}, {"port", found}}
		}
		if why != nil {
			return error2(m, why)
		}
		return respond2(m, good...)
	})
}

// spawn2 starts another step.
func (p *Plugin) spawn2(r *rank, m message) *refusal {
	s := &spawnRequest{}
	if err := s.take2(m); err != nil {
		p.log(r, err.Error())
		return refuse(codeArgument, "%v", err)
	}
	why := s.checkPreput(p.state, 2)
	if why == nil {
		why = p.state.hold(s)
	}
	if why != nil {
		return why
	}
	m = m.stub()
	why = p.later(r, func(ctx context.Context) []byte {
		defer p.state.release(s)
		id, errs, why := p.spawn(ctx, r, s)
		codes := pair{"errcodes", errorCodes(errs)}
		if why != nil {
			return error2(m, why, codes)
		}
		return respond2(m, pair{"jobid", id}, codes)
	})
	if why != nil {
		p.state.release(s)
	}
	return why
}

// ring2 enters a ring: each rank gives a value to each neighbour.
func (p *Plugin) ring2(r *rank, m message) *refusal {
	left, _ := m.get("ring-left")
	right, _ := m.get("ring-right")
	for _, text := range []string{left, right} {
		if len(text) > p.conf.ValueBytes {
			return refuse(codeValueLength, "ring value of %d bytes: more than %d (PMI2ValueBytes)", len(text), p.conf.ValueBytes)
		}
	}
	return p.enter2(r, kindRing, entry{m: m.stub(), left: strings.Clone(left), right: strings.Clone(right)})
}

func (p *Plugin) enter2(r *rank, kind fenceKind, e entry) *refusal {
	out, why := p.state.enter(r, kind, e)
	if why == nil {
		p.settle(out)
	}
	return why
}

// abort2 ends the step, or, without isworld, only takes note that the rank is
// about to end by its own will.
func (p *Plugin) abort2(r *rank, m message) {
	text, _ := m.get("msg")
	if world, ok := m.get("isworld"); ok && world == bool2(false) {
		p.log(r, "aborts alone: "+quote(text))
		p.settle(p.state.advance(r, phaseAborted))
		return
	}
	p.settle(p.state.askedToAbort(r, abortCode2(text), text))
}

// abortCode2 is the code of a PMI-2 abort, which has no field for it: MPICH has it in
// its words, "application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1". The name of
// the communicator is the program's, and may be any. Of other words it is 1.
func abortCode2(text string) int {
	const begin, between, end = "application called MPI_Abort(", ", ", ") - process "
	rest, ok := strings.CutPrefix(text, begin)
	to := strings.LastIndex(rest, end)
	if !ok || to < 0 {
		return 1
	}
	from := strings.LastIndex(rest[:to], between)
	if from < 0 {
		return 1
	}
	code, err := strconv.ParseInt(rest[from+len(between):to], 10, 32)
	if err != nil {
		return 1
	}
	return int(code)
}
