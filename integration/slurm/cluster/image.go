package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A release is a Debian suite that has a release of Slurm.
type release struct {
	name     string // of Slurm: 22.05
	suite    string
	packages []string
}

// Slurm's daemons and commands, and what the checks use beside them. A release has the
// libraries of programs for PMI-2 and PMIx; Slurm loads the latter by its name in -dev.
var common = []string{"slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "procps", "xxd", "openssh-server", "openssh-client", "libpam-slurm-adopt", "xauth", "runc", "busybox-static"}

var releases = []release{
	{name: "22.05", suite: "bookworm", packages: []string{"libpmi2-0", "libpmix-dev", "slurmdbd", "mariadb-server-core", "mariadb-client-core"}},
	{name: "24.11", suite: "trixie", packages: []string{"libpmi2-0t64", "libpmix-dev"}},
	{name: "26.05", suite: "forky", packages: []string{"libpmi2-0t64", "libpmix-dev"}},
}

// Releases returns the releases of Slurm that Debian has, the oldest first.
func Releases() (names []string) {
	for _, r := range releases {
		names = append(names, r.name)
	}
	return names
}

// ErrMoved is the error of a release that its suite does not have any more, or that
// cannot be installed today.
var ErrMoved = errors.New("the release cannot be installed")

// Image is a folder with a Debian root that has a release of Slurm, made where cache has none
// yet. Clusters only read it, so that any number may run.
func Image(ctx context.Context, cache, name string) (string, error) {
	i := slices.IndexFunc(releases, func(r release) bool { return r.name == name })
	if i < 0 {
		return "", fmt.Errorf("cannot find Slurm %q: the releases are %s", name, strings.Join(Releases(), ", "))
	}
	r := releases[i]
	args := []string{
		"--mode=root", "--variant=minbase", "--quiet",
		"--include=" + strings.Join(append(common, r.packages...), ","),
		"--aptopt=Acquire::Languages \"none\"",
		"--aptopt=Acquire::Check-Valid-Until \"false\"", // the newest suite's mirror may be a snapshot
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		r.suite,
	}
	sum := sha256.Sum256([]byte(strings.Join(args, "\n")))
	root := filepath.Join(cache, fmt.Sprintf("%s-%x", r.name, sum[:4]))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("cannot make the image cache %q (SLURM_CACHE=): %w", cache, err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, r.name+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("cannot lock the image cache: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("cannot lock the image cache %q: %w", cache, err)
	}
	if _, err := os.Stat(root); err == nil {
		now := time.Now()
		if err := os.Chtimes(root, now, now); !errors.Is(err, syscall.EROFS) { // a guest's is read-only
			return root, err
		}
		return root, nil
	}
	return root, r.install(ctx, cache, root, args)
}

// unusedFor is how long an image stays that no cluster asks for any more.
const unusedFor = 14 * 24 * time.Hour

// install makes the image beside its place, so that a broken one is never taken for one.
// The release's images of other recipes are removed, unless a cluster may still run on
// one. The caller holds the release's lock.
func (r release) install(ctx context.Context, cache, root string, args []string) error {
	old, err := filepath.Glob(filepath.Join(cache, r.name+"-*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > unusedFor {
			_ = os.RemoveAll(dir) // room is all it costs
		}
	}
	tmp := filepath.Join(cache, r.name+"-tmp")
	if err := os.RemoveAll(tmp); err != nil { // of a run that was killed
		return err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, "mmdebstrap", append(args, tmp)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: Slurm %s of Debian's suite %s: mmdebstrap: %w: %s", ErrMoved, r.name, r.suite, err, lastLine(out))
	}
	out, err := exec.CommandContext(ctx, "dpkg-query", "--admindir="+tmp+"/var/lib/dpkg", "-W", "-f", "${Version}", "slurmd").Output()
	if err != nil {
		return fmt.Errorf("cannot read the version of slurmd in %q: %w", tmp, err)
	}
	if !strings.HasPrefix(string(out), r.name+".") {
		return fmt.Errorf("%w: Slurm %s: Debian's suite %s has %s", ErrMoved, r.name, r.suite, out)
	}
	for _, dir := range []string{"etc/slurm", "usr/libexec/stepd"} { // places for mounts
		if err := os.MkdirAll(filepath.Join(tmp, dir), 0o755); err != nil {
			return err
		}
	}
	return os.Rename(tmp, root)
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
