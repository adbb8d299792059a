package spawn

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// request is the step that r asks for: as the spawning one, where r says nothing
// else. It shares the job's CPUs with what runs there, as --overcommit does.
func request(spec *step.Spec, r launch.SpawnRequest) (*step.Request, error) {
	if len(r.Apps) == 0 {
		return nil, errors.New("cannot spawn: there is no command")
	}
	req := spec.Request
	job, uid, gid := spec.ID.Job, spec.User.UID, spec.User.GID
	req.Job, req.UID, req.GID = &job, &uid, &gid
	req.NTasks, req.NNodes, req.Overcommit, req.MPI = 0, 1, true, r.MPI
	// What was asked for the spawning step's own tasks.
	req.Binding, req.Mem, req.MemPerCPU, req.Gres = step.Binding{}, nil, nil, nil
	req.Script, req.JobControl = nil, nil
	req.Stdin = step.Stream{Kind: step.StreamNull}
	req.Stdout, req.Stderr = step.Stream{Kind: step.StreamClient}, step.Stream{Kind: step.StreamClient}
	req.Apps = nil
	for i := range r.Apps {
		app, err := appOf(spec, &r.Apps[i])
		if err != nil {
			return nil, fmt.Errorf("cannot spawn command %d of %d: %w", i+1, len(r.Apps), err)
		}
		if req.NTasks += app.NTasks; req.NTasks > step.TasksMax {
			return nil, fmt.Errorf("cannot spawn %d tasks: the limit is %d", req.NTasks, step.TasksMax)
		}
		req.Apps = append(req.Apps, app)
	}
	req.Argv = r.Apps[0].Argv
	if name := path.Base(req.Argv[0]); nameable(name) {
		req.Name = name
	}
	if err := srunopt.Validate(&req); err != nil {
		return nil, fmt.Errorf("cannot spawn: %w", err)
	}
	req.Pack()
	return &req, nil
}

// nameable reports whether a step can have the name.
func nameable(name string) bool {
	return len(name) <= srunopt.NameMax && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// appOf is one command with the hints that mean something here; MPI lets the
// others be ignored.
func appOf(spec *step.Spec, a *launch.SpawnApp) (step.App, error) {
	if len(a.Argv) == 0 {
		return step.App{}, errors.New("it is empty")
	}
	if a.NTasks < 1 || a.NTasks > step.TasksMax {
		return step.App{}, fmt.Errorf("%d tasks: want 1 to %d", a.NTasks, step.TasksMax)
	}
	app := step.App{NTasks: a.NTasks, Argv: step.Raw(a.Argv), Env: step.Raw(a.Env), Cwd: []byte(a.Cwd)}
	for _, hint := range a.Info {
		value := string(hint.Value)
		switch hint.Key {
		case "wdir":
			app.Cwd = hint.Value
		case "path":
			app.Env = append(app.Env, []byte("PATH="+value+":"+variable(spec.Env, "PATH")))
		case "host", "hosts", "add-host": // MPI's word, MPICH's and Open MPI's
			if err := onlyHere(spec, value); value != "" && err != nil {
				return step.App{}, err
			}
		}
	}
	return app, nil
}

// onlyHere refuses a hint that names another node than this one: "n1,n2:4", where the
// number counts its tasks.
func onlyHere(spec *step.Spec, hint string) error {
	for word := range strings.SplitSeq(hint, ",") {
		name, count, counted := strings.Cut(strings.TrimSpace(word), ":")
		if !meansHost(spec.NodeName, name) {
			return fmt.Errorf("its hint host names %.64q, and this node is %q; several nodes: use Slurm (docs/slurm.md)", name, spec.NodeName)
		}
		if n, err := strconv.ParseUint(count, 10, 31); counted && (err != nil || n == 0) {
			return fmt.Errorf("its hint host has %.64q: after the colon there is a number of tasks", word)
		}
	}
	return nil
}

// meansHost reports whether a program means the node by host: its name, with a domain or
// without, or localhost.
func meansHost(node, host string) bool {
	if host == "localhost" || host == node {
		return true
	}
	shortHost, _, domain := strings.Cut(host, ".")
	shortNode, _, _ := strings.Cut(node, ".")
	return host == shortNode || domain && shortHost == node
}

func variable(env []string, name string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}
