package slurmconf

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// setter takes one value; its error says what would be right.
type setter func(*Config, string) error

// slurmKeys are the keys of slurm.conf that concern a node daemon, in small letters.
var slurmKeys = map[string]setter{
	"clustername":                   text(func(c *Config) *string { return &c.ClusterName }),
	"slurmdspooldir":                text(func(c *Config) *string { return &c.SlurmdSpoolDir }),
	"slurmdpidfile":                 text(func(c *Config) *string { return &c.SlurmdPidFile }),
	"slurmdlogfile":                 text(func(c *Config) *string { return &c.SlurmdLogFile }),
	"slurmddebug":                   text(func(c *Config) *string { return &c.SlurmdDebug }),
	"tmpfs":                         path(func(c *Config) *string { return &c.TmpFS }),
	"proctracktype":                 oneOf(func(c *Config) *string { return &c.ProctrackType }, "proctrack/cgroup", "proctrack/linuxproc", "proctrack/pgid"),
	"taskplugin":                    list(func(c *Config) *[]string { return &c.TaskPlugin }, ","),
	"jobcontainertype":              oneOf(func(c *Config) *string { return &c.JobContainerType }, "job_container/none", "job_container/tmpfs", "job_container/linux"),
	"mpidefault":                    text(func(c *Config) *string { return &c.MpiDefault }),
	"plugstackconfig":               plugstack,
	"plugindir":                     list(func(c *Config) *[]string { return &c.PluginDir }, ":"),
	"prolog":                        list(func(c *Config) *[]string { return &c.Prolog }, ","),
	"epilog":                        list(func(c *Config) *[]string { return &c.Epilog }, ","),
	"prologflags":                   list(func(c *Config) *[]string { return &c.PrologFlags }, ","),
	"prologepilogtimeout":           seconds(func(c *Config) *time.Duration { return &c.PrologEpilogTimeout }),
	"taskprolog":                    text(func(c *Config) *string { return &c.TaskProlog }),
	"taskepilog":                    text(func(c *Config) *string { return &c.TaskEpilog }),
	"killwait":                      seconds(func(c *Config) *time.Duration { return &c.KillWait }),
	"unkillablesteptimeout":         seconds(func(c *Config) *time.Duration { return &c.UnkillableStepTimeout }),
	"unkillablestepprogram":         text(func(c *Config) *string { return &c.UnkillableStepProgram }),
	"propagateresourcelimits":       list(func(c *Config) *[]string { return &c.PropagateResourceLimits }, ","),
	"propagateresourcelimitsexcept": list(func(c *Config) *[]string { return &c.PropagateResourceLimitsExcept }, ","),
	"propagateprioprocess":          number(func(c *Config) *int { return &c.PropagatePrioProcess }, 0, 2),
	"jobacctgathertype":             oneOf(func(c *Config) *string { return &c.JobAcctGatherType }, "jobacct_gather/none", "jobacct_gather/linux", "jobacct_gather/cgroup"),
	"jobacctgatherfrequency":        text(func(c *Config) *string { return &c.JobAcctGatherFrequency }),
	"selecttype":                    text(func(c *Config) *string { return &c.SelectType }),
	"selecttypeparameters":          list(func(c *Config) *[]string { return &c.SelectTypeParameters }, ","),
	"grestypes":                     list(func(c *Config) *[]string { return &c.GresTypes }, ","),
	"maxtaskspernode":               number(func(c *Config) *int { return &c.MaxTasksPerNode }, 1, 65533),
	"minjobage":                     seconds(func(c *Config) *time.Duration { return &c.MinJobAge }),
	"launchparameters":              list(func(c *Config) *[]string { return &c.LaunchParameters }, ","),
	"debugflags":                    list(func(c *Config) *[]string { return &c.DebugFlags }, ","),
}

// ownKeys are the keys of stepd.conf (rulings 22).
var ownKeys = map[string]setter{
	"hooktimeout":        seconds(func(c *Config) *time.Duration { return &c.Own.HookTimeout }),
	"spankallowreleases": list(func(c *Config) *[]string { return &c.Own.SpankAllowReleases }, ","),
	"quarantineafter":    number(func(c *Config) *int { return &c.Own.QuarantineAfter }, 0, 1<<20),
	"spankstrict":        yesNo(func(c *Config) *bool { return &c.Own.SpankStrict }),
	"nonewprivs":         yesNo(func(c *Config) *bool { return &c.Own.NoNewPrivs }),
	"requiresafeplugins": yesNo(func(c *Config) *bool { return &c.Own.RequireSafePlugins }),
	"metricslisten":      text(func(c *Config) *string { return &c.Own.MetricsListen }),
	"keepsteps":          number(func(c *Config) *int { return &c.Own.KeepSteps }, 1000, 1<<24),
	"replaybytes": func(c *Config, v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 || n > 1<<30 {
			return errors.New("want a number of bytes, at most 1 GiB")
		}
		c.Own.ReplayBytes = n
		return nil
	},
}

// containerKeys are the keys of job_container.conf(5).
var containerKeys = map[string]setter{
	"autobasepath":   yesNo(func(c *Config) *bool { return &c.Container.AutoBasePath }),
	"basepath":       path(func(c *Config) *string { return &c.Container.BasePath }),
	"dirs":           list(func(c *Config) *[]string { return &c.Container.Dirs }, ","),
	"initscript":     path(func(c *Config) *string { return &c.Container.InitScript }),
	"shared":         yesNo(func(c *Config) *bool { return &c.Container.Shared }),
	"entirestepinns": yesNo(func(c *Config) *bool { return &c.Container.EntireStepInNS }),
}

func text(field func(*Config) *string) setter {
	return func(c *Config, v string) error { *field(c) = v; return nil }
}

func path(field func(*Config) *string) setter {
	return func(c *Config, v string) error {
		if !filepath.IsAbs(v) {
			return errors.New("want an absolute path")
		}
		*field(c) = v
		return nil
	}
}

func plugstack(c *Config, v string) error {
	if !filepath.IsAbs(v) {
		v = filepath.Join(filepath.Dir(c.File), v)
	}
	c.PlugStackConfig = v
	return nil
}

func oneOf(field func(*Config) *string, allowed ...string) setter {
	return func(c *Config, v string) error {
		for _, a := range allowed {
			if strings.EqualFold(v, a) {
				*field(c) = a
				return nil
			}
		}
		return fmt.Errorf("want one of %s", strings.Join(allowed, ", "))
	}
}

func list(field func(*Config) *[]string, sep string) setter {
	return func(c *Config, v string) error {
		var out []string
		for _, s := range strings.Split(v, sep) {
			if s = strings.TrimSpace(s); s != "" {
				out = append(out, s)
			}
		}
		*field(c) = out
		return nil
	}
}

func seconds(field func(*Config) *time.Duration) setter {
	return func(c *Config, v string) error {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil {
			return errors.New("want a number of seconds")
		}
		*field(c) = time.Duration(n) * time.Second
		return nil
	}
}

func number(field func(*Config) *int, lo, hi int) setter {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("want a number from %d to %d", lo, hi)
		}
		*field(c) = n
		return nil
	}
}

func yesNo(field func(*Config) *bool) setter {
	return func(c *Config, v string) error {
		switch strings.ToLower(v) {
		case "yes", "true", "1":
			*field(c) = true
		case "no", "false", "0":
			*field(c) = false
		default:
			return errors.New("want yes or no")
		}
		return nil
	}
}
