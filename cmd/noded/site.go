package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"stepd/jobcontainer"
	"stepd/node"
	"stepd/step"
)

const (
	defaultFile  = "/etc/stepd/slurm.conf"
	defaultRun   = "/run/stepd"
	defaultSpool = "/var/spool/stepd"
)

// site is what the command line and the site's files say.
type site struct {
	file       string // "" without one
	run, spool string
	plugstack  string
	hostname   string
}

// confFile is the file to read: -f, which must exist, else $SLURM_CONF, else
// our default where that exists, else none. Never /etc/slurm by itself
// (rulings 28).
func confFile(flag string) (string, error) {
	file := flag
	if file == "" {
		file = os.Getenv("SLURM_CONF")
	}
	if file == "" {
		if _, err := os.Stat(defaultFile); errors.Is(err, os.ErrNotExist) {
			return "", nil
		}
		file = defaultFile
	}
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("cannot read configuration: %w", err)
	}
	return filepath.Abs(file)
}

func loadSite(o options) (*site, error) {
	s := &site{run: defaultRun, spool: defaultSpool}
	var err error
	if s.file, err = confFile(o.file); err != nil {
		return nil, err
	}
	if s.hostname, err = shortHostname(); err != nil {
		return nil, err
	}
	if s.file != "" {
		stack := filepath.Join(filepath.Dir(s.file), "plugstack.conf")
		if _, err := os.Stat(stack); err == nil {
			s.plugstack = stack
		}
	}
	// Flags win over keys (rulings 21).
	for _, d := range []struct {
		flag string
		dir  *string
	}{{o.runDir, &s.run}, {o.spoolDir, &s.spool}} {
		if d.flag == "" {
			continue
		}
		if *d.dir, err = filepath.Abs(d.flag); err != nil {
			return nil, fmt.Errorf("cannot use directory %q: %w", d.flag, err)
		}
	}
	return s, nil
}

// logTo moves the log where the site wants it. The file is nil for stderr.
func (s *site) logTo(log *logrus.Logger, o options) (*os.File, error) { return nil, nil }

// config wires the node.
func (s *site) config(log *logrus.Logger, logFile *os.File) (node.Config, error) {
	stepd, spankhost, err := programs()
	if err != nil {
		return node.Config{}, err
	}
	cpus, err := machineCPUs()
	if err != nil {
		return node.Config{}, err
	}
	memory, err := machineMemory()
	if err != nil {
		return node.Config{}, err
	}
	tracker, fallbacks, err := newTracker(log, "", s.spool)
	if err != nil {
		return node.Config{}, err
	}
	if logFile == nil {
		logFile = os.Stderr
	}
	return node.Config{
		NodeName: s.hostname, RunDir: s.run, SpoolDir: s.spool, SlurmConf: s.file,
		CPUs: cpus, MemoryBytes: memory,
		Spank:      step.SpankConf{Plugstack: s.plugstack},
		MPIDefault: "none", MPITypes: []string{"none", "pmi2"},
		StepdPath: stepd, StepdLog: logFile,
		Users: node.NewLookup(spankhost), Tracker: tracker, Containers: jobcontainer.None{},
		Fallbacks: fallbacks, Log: log,
	}, nil
}

func check(out io.Writer, o options) error {
	_, err := loadSite(o)
	return err
}
