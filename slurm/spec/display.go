package spec

import (
	"cmp"
	"strings"

	"stepd/slurm/wire"
	"stepd/slurmconf"
)

// DisplayKey is the directory of the file that has the key of a job's display or, with
// X11Parameters=home_xauthority, the home whose .Xauthority has it. A home that is not known is no
// path. set is slurm.conf.
func DisplayKey(c *wire.Conf, cred *wire.Cred, set []slurmconf.Setting) (dir, home string) {
	for _, s := range set {
		switch {
		case s.On != "": // of a node
		case strings.EqualFold(s.Key, "TmpFS"):
			dir = s.Value
		case strings.EqualFold(s.Key, "X11Parameters"):
			home = ""
			if strings.Contains(strings.ToLower(s.Value), "home_xauthority") {
				home = cmp.Or(cred.Dir, "unknown home")
			}
		}
	}
	return strings.NewReplacer("%h", c.Host, "%n", c.Node).Replace(cmp.Or(dir, "/tmp")), home
}
