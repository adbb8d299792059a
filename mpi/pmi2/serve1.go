package pmi2

import (
	"fmt"
	"strings"
)

// serve1 answers a PMI-1 rank, line by line, until its end. The error says why
// the rank was cut off; io.EOF is a clean end.
func (p *Plugin) serve1(r *rank, in *reader) error {
	for {
		r.conn.waitIdle()
		text, err := in.line()
		if err != nil {
			return err
		}
		m, err := parseLine(text, p.conf.Attributes)
		if err == nil && m.multi {
			m, err = p.readBlock(m, in)
		}
		switch {
		case err != nil && m.cmd == "":
			return err
		case err != nil:
			p.log(r, err.Error())
			p.send(r, error1(answer1(m.cmd), refuse(codeArgument, "%v", err)))
		default:
			if err := p.command1(r, m); err != nil {
				return err
			}
		}
	}
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
			return message{}, fmt.Errorf("cannot read PMI-1 %s: more than %d bytes (FrameBytes)", quote(m.cmd), p.conf.FrameBytes)
		}
		if len(m.pairs) == p.conf.Attributes {
			return message{}, fmt.Errorf("cannot read PMI-1 %s: more than %d lines (Attributes)", quote(m.cmd), p.conf.Attributes)
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
	case "put", "get", "publish_name", "unpublish_name", "lookup_name":
		p.store1(r, m)
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
		p.send(r, line1("finalize_ack", pair{"rc", "0"}))
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
		return line1("maxes", pair{"rc", "0"},
			pair{"kvsname_max", "256"}, // what hydra tells
			pair{"keylen_max", itoa(p.conf.KeyBytes1)},
			pair{"vallen_max", itoa(p.conf.ValueBytes)})
	case "get_appnum":
		return line1("appnum", pair{"rc", "0"}, pair{"appnum", "0"})
	case "get_my_kvsname":
		return line1("my_kvsname", pair{"rc", "0"}, pair{"kvsname", p.state.jobID})
	case "get_universe_size":
		return line1("universe_size", pair{"rc", "0"}, pair{"size", itoa(p.state.size)})
	}
	p.log(r, "unknown PMI-1 command "+quote(m.cmd))
	return error1(answer1(m.cmd), refuse(codeOther, "unknown command"))
}

// store1 carries out what touches the shared maps.
func (p *Plugin) store1(r *rank, m message) {
	var text string
	var why *refusal
	key, _ := m.get("key")
	service, _ := m.get("service")
	if kvs, ok := m.get("kvsname"); ok && kvs != p.state.jobID {
		why = refuse(codeArgument, "key value space %s is not this step's", quote(kvs))
	}
	// The names of the answers' attributes are those that MPICH reads.
	var good []pair
	var bad []pair
	switch {
	case why != nil:
	case m.cmd == "put":
		value, _ := m.get("value")
		why = p.state.put(r, p.conf.KeyBytes1, key, value)
	case m.cmd == "get":
		var ok bool
		if text, ok = p.state.lookup(r, key); !ok {
			why, bad = refuse(codeKey, "key not found"), []pair{{"value", "unknown"}}
		}
		good = []pair{{"value", text}}
	case m.cmd == "publish_name":
		port, _ := m.get("port")
		why = p.state.publish(r, p.conf.KeyBytes1, service, port)
	case m.cmd == "unpublish_name":
		why = p.state.unpublish(service)
	case m.cmd == "lookup_name":
		text, why = p.state.resolve(service)
		good = []pair{{"port", text}}
	}
	if strings.HasSuffix(m.cmd, "_name") {
		good = append([]pair{{"info", "ok"}}, good...)
		bad = append(bad, pair{"info", "fail"})
	}
	if why != nil {
		p.send(r, error1(answer1(m.cmd), why, bad...))
		return
	}
	p.send(r, line1(answer1(m.cmd), append([]pair{{"rc", "0"}}, good...)...))
}

// spawn1 refuses a spawn, once the last of its blocks is there: the client
// reads one answer for all.
func (p *Plugin) spawn1(r *rank, m message) {
	total, ok1 := m.number("totspawns")
	sofar, ok2 := m.number("spawnssofar")
	if ok1 && ok2 && sofar < total {
		return
	}
	p.log(r, "spawn is not supported by mpi/pmi2")
	p.send(r, error1("spawn_result", refuse(codeOther, "spawn is not supported by mpi/pmi2")))
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
