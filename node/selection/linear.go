package selection

import (
	"fmt"
	"slices"
	"time"

	"stepd/step"
)

// linear is select/linear: a job has all CPUs of the node, unless it shares them (--overcommit).
type linear struct{ *node }

func (l *linear) Test(req *step.Request, mode Mode) (Share, error) {
	return l.testAs(req, mode, wholeNode)
}

func (l *linear) WillRun(req *step.Request, ends func(*Job) *time.Time) Wait {
	return l.willRun(req, ends, wholeNode)
}

func (l *linear) Info() Info {
	i := l.info(Linear)
	i.Unit = string(UnitNode)
	return i
}

// wholeNode gives a job the whole node, where it is free and has room for what the request says of
// cores.
func wholeNode(p *cpuPool, req *step.Request, near map[int]bool) ([]int, error) {
	u, cores := p.coreUseOf(req)
	if req.Overcommit || u.cpus > len(p.cpus) {
		return p.take(u.cpus, req.Overcommit, near)
	}
	if free := p.free(); free < len(p.cpus) {
		return nil, fmt.Errorf("the step does not fit: it needs the whole node (SelectType=select/linear), and of its %s %d are free; --overcommit shares them with other jobs", CountCPUs(len(p.cpus)), free)
	}
	if cores && len(p.cores) > 0 {
		if got, room := u.pick(p.cores); got == nil {
			return nil, fmt.Errorf("%s: with %s there is room for %s on %d cores; --overcommit shares CPUs among tasks", Needs(u.cpus), u.words, CountCPUs(room), len(p.cores))
		}
	}
	return slices.Clone(p.cpus), nil
}
