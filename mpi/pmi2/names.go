package pmi2

import (
	"slices"
	"strings"
)

// waiter is a rank that waits for an attribute of the node.
type waiter struct {
	r *rank
	m message // what the answer needs of the request
}

// putAttr stores an attribute of the node, visible at once, and answers those
// who wait for it.
func (s *state) putAttr(r *rank, key, text string) (outcome, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.check(2, key, text); why != nil {
		return outcome{}, why
	}
	if key == keyLocalRanks || key == keyLocalRanksNr {
		return outcome{}, refuse(codeKey, "attribute %s is the server's", key)
	}
	if why := s.store(s.attrs, r, key, text); why != nil {
		return outcome{}, why
	}
	var out outcome
	for _, w := range s.waits[key] {
		w.r.waits--
		s.note(w.r)
		out.deliveries = append(out.deliveries, delivery{w.r, foundAttr(w.m, text)})
	}
	delete(s.waits, key)
	return out, nil
}

// getAttr answers a request for an attribute of the node: at once, or, where
// the rank wants to wait, when a rank puts it (answer nil).
func (s *state) getAttr(r *rank, m message, key string, wait bool) (answer []byte, why *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.check(2, key, ""); why != nil {
		return nil, why
	}
	text, ok := s.attr(key)
	switch {
	case ok:
		return foundAttr(m, text), nil
	case !wait:
		return respond2(m, pair{"found", bool2(false)}), nil
	case r.waits >= s.conf.WaitsPerRank:
		return nil, refuse(codeNoMemory, "rank %d waits for %d attributes: the limit (PMI2WaitsPerRank)", r.n, r.waits)
	}
	r.waits++
	key = strings.Clone(key)
	r.waitKey = key
	s.note(r)
	s.waits[key] = append(s.waits[key], waiter{r, m.stub()})
	return nil, nil
}

func foundAttr(m message, text string) []byte {
	return respond2(m, pair{"found", bool2(true)}, pair{"value", text})
}

// attr finds an attribute; the caller holds mu.
func (s *state) attr(key string) (string, bool) {
	switch key {
	case keyLocalRanksNr:
		return itoa(len(s.ranks)), true
	case keyLocalRanks:
		// A list longer than a client's buffer would be cut there.
		list := make([]string, len(s.ranks))
		for i, r := range s.ranks {
			list[i] = itoa(r.n)
		}
		text := strings.Join(list, ",")
		return text, len(text) <= s.conf.ValueBytes
	}
	v, ok := s.attrs[key]
	return v.text, ok
}

// store charges r and stores a pair that is visible at once; the caller holds
// mu. A pair that is refused leaves the old one as it was.
func (s *state) store(in map[string]value, r *rank, key, text string) *refusal {
	if why := s.take(r, key, text); why != nil {
		return why
	}
	s.replace(in, strings.Clone(key), value{strings.Clone(text), r, true})
	return nil
}

// forget drops the requests of a rank that can no longer be answered; the
// caller holds mu.
func (s *state) forget(r *rank) {
	if r.waits == 0 {
		return
	}
	for key, list := range s.waits {
		list = slices.DeleteFunc(list, func(w waiter) bool { return w.r == r })
		if len(list) == 0 {
			delete(s.waits, key)
		} else {
			s.waits[key] = list
		}
	}
	r.waits = 0
}
