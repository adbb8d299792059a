package spec

import (
	"testing"

	"stepd/slurm/wire"
	"stepd/slurmconf"
)

func TestDisplayKey(t *testing.T) {
	conf := &wire.Conf{Host: "host1", Node: "n1"}
	for name, tc := range map[string]struct {
		set       []slurmconf.Setting
		userHome  string
		dir, home string
	}{
		"nothing is set":      {nil, "/home/u", "/tmp", ""},
		"a node's directory":  {[]slurmconf.Setting{{Key: "tmpfs", Value: "/scratch/%h/%n"}, {Key: "TmpFS", Value: "/no", On: "n1"}}, "/home/u", "/scratch/host1/n1", ""},
		"the user's own file": {[]slurmconf.Setting{{Key: "X11Parameters", Value: "a,Home_Xauthority"}}, "/home/u", "/tmp", "/home/u"},
		"no home":             {[]slurmconf.Setting{{Key: "X11Parameters", Value: "home_xauthority"}}, "", "/tmp", "unknown home"},
		"the last one counts": {[]slurmconf.Setting{{Key: "X11Parameters", Value: "home_xauthority"}, {Key: "X11Parameters"}}, "/home/u", "/tmp", ""},
	} {
		if dir, home := DisplayKey(conf, &wire.Cred{Dir: tc.userHome}, tc.set); dir != tc.dir || home != tc.home {
			t.Errorf("%s: %q, %q", name, dir, home)
		}
	}
}
