package jobcontainer

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func validConfig() Config {
	return Config{BasePath: "/local/base", RunDir: "/run/stepd/jobs", NodeTag: "0123abcd", NodeName: "n1", HostName: "h1"}
}

func TestConfigDefaults(t *testing.T) {
	got, err := validConfig().complete()
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/tmp", "/dev/shm"}; !slices.Equal(got.Dirs, want) {
		t.Errorf("Dirs = %q, want %q", got.Dirs, want)
	}
	if got.InitTimeout != 10*time.Second {
		t.Errorf("InitTimeout = %v, want Slurm's 10 s", got.InitTimeout)
	}
}

func TestConfigBasePathNames(t *testing.T) {
	tests := map[string]string{
		"/b/%h":       "/b/h1",
		"/b/%n":       "/b/n1",
		"/b/%h/%n":    "/b/h1/n1",
		"/b/%n/%n":    "/b/n1/%n", // the first one only, as in Slurm
		"/b/plain/":   "/b/plain",
		"/b/100%full": "/b/100%full",
	}
	for base, want := range tests {
		c := validConfig()
		c.BasePath = base
		got, err := c.complete()
		if err != nil {
			t.Errorf("BasePath=%s: %v", base, err)
		} else if got.BasePath != want {
			t.Errorf("BasePath=%s became %q, want %q", base, got.BasePath, want)
		}
	}
}

func TestConfigMistakes(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		want   string // in the error
	}{
		{"no BasePath", func(c *Config) { c.BasePath = "" }, "BasePath is not set"},
		{"relative BasePath", func(c *Config) { c.BasePath = "base" }, `BasePath "base": not an absolute path`},
		{"BasePath none", func(c *Config) { c.BasePath = "none" }, `BasePath "none"`},
		{"BasePath is the root", func(c *Config) { c.BasePath = "/" }, "BasePath"},
		{"dots in BasePath", func(c *Config) { c.BasePath = "/a/../b" }, `"/b"`},
		{"line break in BasePath", func(c *Config) { c.BasePath = "/a\nb" }, "line break"},
		{"BasePath is one of Dirs", func(c *Config) { c.BasePath = "/tmp" }, "one of Dirs="},
		{"relative directory", func(c *Config) { c.Dirs = []string{"tmp"} }, `Dirs "tmp"`},
		{"root directory", func(c *Config) { c.Dirs = []string{"/"} }, "Dirs"},
		{"directory twice", func(c *Config) { c.Dirs = []string{"/tmp", "/tmp/"} }, `"/tmp" and "/tmp"`},
		{"directory in another", func(c *Config) { c.Dirs = []string{"/a", "/a/b"} }, `"/a" and "/a/b"`},
		{"another in directory", func(c *Config) { c.Dirs = []string{"/a/b", "/a"} }, `"/a/b" and "/a"`},
		{"too many", func(c *Config) { c.Dirs = make([]string, 65) }, "at most 64"},
		{"relative InitScript", func(c *Config) { c.InitScript = "init.sh" }, `InitScript "init.sh"`},
		{"negative time limit", func(c *Config) { c.InitTimeout = -1 }, "time limit"},
		{"no run directory", func(c *Config) { c.RunDir = "" }, "run directory"},
		{"bad tag", func(c *Config) { c.NodeTag = "../../x" }, "tag"},
		{"no node name", func(c *Config) { c.NodeName = "" }, "node name"},
		{"bad node name", func(c *Config) { c.NodeName = "a/b" }, "node name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := validConfig()
			tt.change(&c)
			_, err := NewTmpfs(c)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// Names that only look nested are not.
func TestConfigNeighbours(t *testing.T) {
	c := validConfig()
	c.Dirs = []string{"/a/b", "/a/bc", "/a-b", "/..a"}
	if _, err := c.complete(); err != nil {
		t.Fatal(err)
	}
}

func TestPrivateNamesDiffer(t *testing.T) {
	long := "/" + strings.Repeat("x", 300)
	seen := map[string]bool{}
	for i, d := range []string{"/a/b", "/a-b", long, long + "y"} {
		n := privateName(i, d)
		if seen[n] || len(n) > 255 || strings.Contains(n, "/") {
			t.Errorf("%q for %q: not a name of its own", n, d)
		}
		seen[n] = true
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("/local/%h/%n", "/tmp", "/dev/shm")
	f.Add("/", "/../tmp", "//")
	f.Add("/a/./b", "/tmp/", "/tmp/x")
	f.Fuzz(func(t *testing.T, base, d1, d2 string) {
		c := validConfig()
		c.BasePath, c.Dirs = base, []string{d1, d2}
		got, err := c.complete()
		if err != nil {
			return
		}
		for i, p := range append([]string{got.BasePath}, got.Dirs...) {
			if !strings.HasPrefix(p, "/") || p == "/" || strings.Contains(p+"/", "/../") || strings.HasSuffix(p, "/") {
				t.Errorf("accepted path %d: %q", i, p)
			}
		}
		if got.Dirs[0] == got.Dirs[1] || got.BasePath == got.Dirs[0] {
			t.Errorf("accepted equal paths: %q %q", got.BasePath, got.Dirs)
		}
	})
}
