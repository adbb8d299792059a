package pmi2

import (
	"context"
	"fmt"
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
