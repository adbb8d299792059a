package slurmconf

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	dir := write(t, map[string]string{"slurm.conf": `SlurmdSpoolDir=/spool/%h/%n
NodeName=a
NodeName=b[1-3] NodeAddr=10.0.0.[1-3] NodeHostname=h[1-3] Port=[7001-7003]
NodeName=DEFAULT Port=7000
Include more
SlurmdPort=6900
`, "more": "NodeName=c NodeAddr=fd00::1\nNodeName=d[1-2] NodeAddr=10.0.0.9 Port=7001,7002\n"})
	found, err := Addresses(filepath.Join(dir, "slurm.conf"), []string{"a", "b2", "c", "d2"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Address{
		"a":  {"a", 6900, "/spool/a/a"},
		"b2": {"10.0.0.2", 7002, "/spool/h2/b2"},
		"c":  {"fd00::1", 7000, "/spool/c/c"},
		"d2": {"10.0.0.9", 7002, "/spool/d2/d2"},
	} {
		if found[name] != want {
			t.Errorf("%s: got %+v, want %+v", name, found[name], want)
		}
	}
	if got := found["c"].HostPort(); got != "[fd00::1]:7000" {
		t.Errorf("got %s", got)
	}
	if len(found) != 4 {
		t.Errorf("got %v", found)
	}
}

func TestAddressesRefuses(t *testing.T) {
	for text, why := range map[string]string{
		"NodeName=x\n":                   `cannot find node "a" in `,
		"NodeName=a Port=0\n":            `"0" are no ports of 1 nodes`,
		"NodeName=a,b,c Port=[1-2]\n":    "", // c alone has none
		"NodeName=c,b,a Port=[1-2]\n":    "are no ports of 3 nodes",
		"NodeName=a NodeAddr=10.0.0.[\n": "not closed",
	} {
		dir := write(t, map[string]string{"slurm.conf": text})
		_, err := Addresses(filepath.Join(dir, "slurm.conf"), []string{"a"})
		if (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
