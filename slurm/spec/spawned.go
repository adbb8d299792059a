package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
)

// pmi2Prefix begins the variables by which srun and a spawned step's srun speak to the step
// daemons. The variables of a spawn are:
//
//	SPAWN_SEQ                 srun's number of the spawn
//	SPAWNER_JOBID, PMI_JOBID  names that Slurm's own step daemon gives the key value spaces
//	SPAWNER_PORT              for the new srun alone
//	PREPUT_COUNT, PPKEYn, PPVALn  keys that the ranks find in their key value space
const pmi2Prefix = "SLURM_PMI2_"

// An Origin is who has asked for a spawned step.
type Origin struct {
	// Node is where the spawning rank runs, Step the rank's step.
	Node string
	Step step.ID
	// Spawn is the number that the step daemon there has given.
	Spawn uint32
}

// The keys, among the ranks' own, that one step daemon gives to another. A user's program
// may give them as well: what they say is checked.
const (
	ownPrefix = "stepd."
	originKey = ownPrefix + "origin"
	wdirKey   = ownPrefix + "wdir." // and the number of a command
	pathKey   = ownPrefix + "path."
)

// Pair is the origin as the spawned step finds it.
func (o *Origin) Pair() wire.PMIPair {
	return wire.PMIPair{Key: originKey, Value: fmt.Sprintf("%d %s %s", o.Spawn, o.Step.Key(), o.Node)}
}

// Hints are the hints of one command of several, for which srun has no option.
func Hints(command int, wdir, path string) (pairs []wire.PMIPair) {
	for _, hint := range []wire.PMIPair{{Key: wdirKey, Value: wdir}, {Key: pathKey, Value: path}} {
		if hint.Value != "" {
			pairs = append(pairs, wire.PMIPair{Key: hint.Key + strconv.Itoa(command), Value: hint.Value})
		}
	}
	return pairs
}

// preput are the keys of a spawned step, with our own.
func preput(env []string) (pairs []wire.PMIPair) {
	values := make(map[string]string)
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, pmi2Prefix) {
			values[name] = value
		}
	}
	n, err := strconv.ParseUint(values[pmi2Prefix+"PREPUT_COUNT"], 10, 31)
	if _, spawned := values[pmi2Prefix+"SPAWN_SEQ"]; !spawned || err != nil {
		return nil
	}
	for i := range min(int(n), len(values)) {
		at := strconv.Itoa(i)
		if key, ok := values[pmi2Prefix+"PPKEY"+at]; ok {
			pairs = append(pairs, wire.PMIPair{Key: key, Value: values[pmi2Prefix+"PPVAL"+at]})
		}
	}
	return pairs
}

// OriginOf is the origin of a spawned step, nil of another. It is of the step's own job, and on
// one of the job's nodes.
func OriginOf(s *wire.Stream) *Origin {
	if s.Launch == nil {
		return nil
	}
	for _, p := range preput(s.Launch.Env) {
		if p.Key != originKey {
			continue
		}
		if o, err := parseOrigin(p.Value); err == nil && o.Step.Job == s.Launch.Step.Job && onNode(s.Launch.Cred.JobHosts, o.Node) {
			return o
		}
	}
	return nil
}

func onNode(hosts, node string) bool {
	list, err := slurmconf.ExpandHosts(hosts)
	return err == nil && slices.Contains(list, node)
}

func parseOrigin(text string) (*Origin, error) {
	words := strings.SplitN(text, " ", 3)
	if len(words) < 3 {
		return nil, fmt.Errorf("cannot read the origin %.64q of a spawned step", text)
	}
	n, err := strconv.ParseUint(words[0], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("cannot read the origin %.64q of a spawned step: %w", text, err)
	}
	id, err := step.ParseID(words[1])
	if err != nil {
		return nil, err
	}
	return &Origin{Spawn: uint32(n), Step: id, Node: words[2]}, nil
}

// spawned makes the step one that others have spawned, where it is.
func spawned(out *step.Spec, s *wire.Stream) {
	o := OriginOf(s)
	if o == nil {
		return
	}
	out.Parent = &o.Step
	for _, p := range preput(s.Launch.Env) {
		if strings.HasPrefix(p.Key, ownPrefix) {
			giveHint(out, p.Key, p.Value)
			continue
		}
		out.Preput = append(out.Preput, step.KeyValue{Key: p.Key, Value: []byte(p.Value)})
	}
}

// giveHint gives one command of several its directory or its path.
func giveHint(out *step.Spec, key, value string) {
	at := strings.LastIndexByte(key, '.') + 1
	i, err := strconv.ParseUint(key[at:], 10, 31)
	if err != nil || int(i) >= len(out.Apps) {
		return
	}
	app := &out.Apps[i]
	switch key[:at] {
	case wdirKey:
		app.Cwd = []byte(value)
	case pathKey:
		app.Env = append(app.Env, []byte("PATH="+value))
	}
}
