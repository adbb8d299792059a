package site

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"

	"stepd/jobcontainer"
	"stepd/node"
	"stepd/proctrack"
	"stepd/slurmconf"
	"stepd/step"
)

// containers makes the job container plugin that the site wants.
func (s *Site) containers(tracker node.Tracker, spankhost string, log *logrus.Logger) (node.Containers, string, error) {
	kind := s.conf.JobContainerType
	if kind == "none" {
		return jobcontainer.None{}, kind, nil
	}
	tag, err := proctrack.RootName(s.Spool)
	if err != nil {
		return nil, "", err
	}
	c := s.conf.Container
	conf := jobcontainer.Config{
		BasePath: c.BasePath, AutoBasePath: c.AutoBasePath, Dirs: c.Dirs, InitScript: c.InitScript,
		Shared: c.Shared, EntireStepInNS: c.EntireStepInNS,
		CloneNSScript: c.CloneNSScript, CloneNSScriptWait: c.CloneNSScriptWait,
		CloneNSEpilog: c.CloneNSEpilog, CloneNSEpilogWait: c.CloneNSEpilogWait,
		RunDir: filepath.Join(s.Run, "jobs"), NodeTag: strings.TrimPrefix(tag, "stepd-"),
		NodeName: s.conf.Node.Name, HostName: s.hostname, SlurmConf: s.conf.File,
		Warn: func(err error) { log.Warnf("%v", err) },
	}
	if kind == "linux" {
		conf.PIDNamespace, conf.UserNamespace, conf.Keeper = c.PIDNamespace, c.UserNamespace, spankhost
		conf.Place = func(job uint32) (jobcontainer.Place, error) { return keeperPlace(tracker, job) }
	}
	t, err := jobcontainer.NewTmpfs(conf)
	return t, kind, err
}

// keeperPlace is where process 1 of a job's pid namespace lives: in a place of its
// own, not among the job's tasks and not with prolog and epilog, which end before it.
func keeperPlace(tracker node.Tracker, job uint32) (jobcontainer.Place, error) {
	id := step.ID{Job: job, Step: node.KeeperPlace}
	leaf, err := tracker.MakeScripts(id)
	return jobcontainer.Place{Leaf: leaf, Add: func(pid int) error {
		return tracker.AddStepd(id, pid)
	}}, err
}

// checkHidden warns of directories of noded's that no task sees, since each job has
// one of its own in the place of one above them.
func (s *Site) checkHidden() {
	if s.conf.JobContainerType == "none" {
		return
	}
	dirs := s.conf.Container.Dirs
	if len(dirs) == 0 {
		dirs = []string{"/tmp", "/dev/shm"}
	}
	for _, own := range []struct{ what, dir, lost, remedy string }{
		{"run", s.Run, "stepctl in a job does not reach noded", "--run-dir names another one"},
		{"spool", s.Spool, "batch scripts are not found", "--spool-dir, or SlurmdSpoolDir, names another one"},
	} {
		for _, d := range dirs {
			if rel, err := filepath.Rel(d, own.dir); err != nil || !filepath.IsLocal(rel) {
				continue
			}
			s.problems = append(s.problems, slurmconf.Problem{
				Severity: slurmconf.SeverityWarning, File: s.conf.File,
				Text:   fmt.Sprintf("the %s directory %q lies in %q, in whose place each job has one of its own: %s", own.what, own.dir, d, own.lost),
				Remedy: fmt.Sprintf("%s, or leave %s out of Dirs= in job_container.conf", own.remedy, d),
			})
		}
	}
}
