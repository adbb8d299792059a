package pmix

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"stepd/internal/linux"
	"stepd/step"
)

// Config is what the plugin needs of its site and of stepd.
type Config struct {
	step.PMIxConf
	// Program is the path of pmixhost; "" is beside this program.
	Program string
	// Start runs a program (linux.Reaper.Start) and gives its end. The zero value
	// makes Prefork fail.
	Start func(path string, argv []string, attr *syscall.ProcAttr) (pid int, exited <-chan linux.Exit, err error)
	// Namespace is the job's mount namespace, which pmixhost joins, since the tasks
	// see its files there; nil without a container.
	Namespace *os.File
	// DataLimit bounds the memory of pmixhost, in bytes: 512 MiB and 2 MiB for each
	// of the step's tasks.
	DataLimit uint64
	// CloseGrace is how long a rank that has ended is given for its last words to
	// come: 5 s.
	CloseGrace time.Duration
}

// callTimeout bounds what pmixhost does by itself: a start, a registration.
const callTimeout = 60 * time.Second

// withDefaults fills what the site left out.
func (c Config) withDefaults(spec *step.Spec) Config {
	if c.Timeout <= 0 {
		c.Timeout = 300 * time.Second
	}
	if c.CloseGrace <= 0 {
		c.CloseGrace = 5 * time.Second
	}
	if c.DataLimit == 0 {
		c.DataLimit = 512<<20 + uint64(spec.NTasks)<<21
	}
	if c.Program == "" {
		if self, err := os.Executable(); err == nil {
			c.Program = filepath.Join(filepath.Dir(self), "pmixhost")
		}
	}
	return c
}
