package stdio

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
)

// labelled is a step of three tasks of eleven whose stdout goes to labelled files of the pattern.
func labelled(dir, pattern string) Config {
	cfg := config(3)
	cfg.Tasks, cfg.Speaker, cfg.Opener.Umask = 11, "slurmstepd-n1", 0o027
	cfg.Opener.User = step.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Groups: []uint32{uint32(os.Getgid())}}
	cfg.Files[1].Path = func(rank int) (string, error) {
		return filepath.Join(dir, strings.ReplaceAll(pattern, "%t", fmt.Sprint(rank))), nil
	}
	return cfg
}

func TestLabelled(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", lineMax+10)
	r := begin(t, labelled(dir, "out.%t"))
	if r.srun.ends != [3]uint32{0, 0, 3} {
		t.Errorf("srun is told of %v ends", r.srun.ends)
	}
	for rank, text := range map[int]string{4: "a\nb\n", 5: "\nno end", 6: long + "\nend"} {
		if _, err := r.fd(rank, 1).WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	r.tasksEnd()
	go r.finish()
	if got := r.srun.toEnd(); len(got) != 3 {
		t.Errorf("srun gets %v", got)
	}
	<-r.loop.done
	for name, want := range map[string]string{"out.4": " 4: a\n 4: b\n", "out.5": " 5: \n 5: no end\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v, want %q", name, got, err, want)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "out.6"))
	if text := strings.NewReplacer(" 6: ", "", "\n", "").Replace(string(got)); err != nil || text != long+"end" || !strings.HasSuffix(string(got), "\n 6: end\n") {
		t.Errorf("of a line of %d bytes and 3, the file has %d, %v", len(long), len(text), err)
	}
	if st, err := os.Stat(filepath.Join(dir, "out.4")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("the file is %v, %v", st.Mode(), err)
	}
}

// TestLabelledShared: tasks of a node may have one file, and a file may be kept.
func TestLabelledShared(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	for i, keep := range []bool{false, false, true} {
		cfg := labelled(dir, "out")
		cfg.Files[1].Append = keep
		r := begin(t, cfg)
		for rank := 4; rank < 7; rank++ {
			if _, err := fmt.Fprintf(r.fd(rank, 1), "run %d\n", i); err != nil {
				t.Fatal(err)
			}
		}
		r.tasksEnd()
		go r.finish()
		r.srun.toEnd()
		<-r.loop.done
	}
	got, err := os.ReadFile(path)
	lines := strings.SplitAfter(string(got), "\n")
	slices.Sort(lines)
	if want := " 4: run 1\n 4: run 2\n 5: run 1\n 5: run 2\n 6: run 1\n 6: run 2\n"; err != nil || strings.Join(lines, "") != want {
		t.Errorf("the file has %q, %v", got, err)
	}
}

// TestSayLabelled: messages are in the file of the first task's stderr, also those before it is
// open.
func TestSayLabelled(t *testing.T) {
	dir := t.TempDir()
	cfg := labelled(dir, "err.%t")
	cfg.Files[1], cfg.Files[2] = Files{}, cfg.Files[1]
	r := connected(t, cfg)
	r.Say("early")
	if err := r.Streams.Attach(r); err != nil {
		t.Fatal(err)
	}
	r.tasksEnd()
	r.Drain(limit)
	r.Say("late")
	go r.srun.toEnd()
	r.close()
	if got, err := os.ReadFile(filepath.Join(dir, "err.4")); err != nil || string(got) != " 4: early\n 4: late\n" {
		t.Errorf("the file has %q, %v", got, err)
	}
}

// TestLabelledComponent: a label is the rank in the whole step, of which this is a component.
func TestLabelledComponent(t *testing.T) {
	dir := t.TempDir()
	cfg := labelled(dir, "out")
	cfg.First, cfg.Tasks = 100, 106
	r := begin(t, cfg)
	if _, err := r.fd(5, 1).WriteString("a\n"); err != nil {
		t.Fatal(err)
	}
	r.tasksEnd()
	go r.srun.toEnd()
	r.finish()
	if got, err := os.ReadFile(filepath.Join(dir, "out")); err != nil || string(got) != "105: a\n" {
		t.Errorf("the file has %q, %v", got, err)
	}
}

// TestLabelledFlows: labelled files get all while srun reads nothing.
func TestLabelledFlows(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, labelled(dir, "out.%t"))
	go func() { _, _ = r.fd(4, 2).Write(make([]byte, 32<<20)) }() // until the streams end
	awaitSame(t, func() int64 {
		r.loop.mu.Lock()
		defer r.loop.mu.Unlock()
		return r.loop.passed[2]
	}, 32<<20)
	text := strings.Repeat("still here\n", 100_000)
	if _, err := r.fd(5, 1).WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := r.srun.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	r.srun.Close()
	r.tasksEnd()
	r.finish()
	if got, err := os.ReadFile(filepath.Join(dir, "out.5")); err != nil || len(got) != len(text)+4*100_000 {
		t.Errorf("the file has %d bytes, %v", len(got), err)
	}
}

func TestLabelledFails(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(filepath.Join(dir, "fifo"), os.O_RDWR, 0) // or it has no reader
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	for name, want := range map[string]string{
		"no/dir": "no such file or directory", "fifo": "must be a regular one", "../../../../../../../../proc/self/fd/0": "too many levels of symbolic links",
	} {
		cfg, both := labelled(dir, name), name == "fifo"
		if both {
			cfg.Files[2] = cfg.Files[1]
		}
		r := connected(t, cfg)
		err := r.Streams.Attach(r)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "stdout file") {
			t.Errorf("Attach with %q = %v, want %q", name, err, want)
		}
		<-r.done
		// Why is a message that goes to the file that cannot be opened.
		r.Say("why")
		r.SayTask(5, "why")
		go r.finish()
		if got := r.srun.toEnd()[header{kind: stderr, rank: 4}]; both && got != "why\nwhy\n" || !both && got != "why\n" {
			t.Errorf("srun gets %q", got)
		}
	}
	r := connected(t, labelled(dir, "out"))
	r.cfg.Files[1].Path = func(int) (string, error) { return "", errors.New("no name") }
	if err := r.Streams.Attach(r); err == nil || err.Error() != "no name" {
		t.Errorf("Attach = %v", err)
	}
	go r.srun.toEnd()
	r.finish()
}

// TestLabelledFull: what a file does not take is dropped, and reported once.
func TestLabelledFull(t *testing.T) {
	r := begin(t, labelled("/dev", "null"))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	user, err := r.cfg.Opener.thread()
	if err != nil {
		t.Fatal(err)
	}
	f := &file{File: full, user: user, width: 1}
	defer user.Close()
	defer full.Close()
	if rest, err := f.pass(1, []byte("a\nb"), false); err == nil || !errors.Is(err, unix.ENOSPC) || string(rest) != "b" {
		t.Errorf("pass = %q, %v", rest, err)
	}
	if rest, err := f.pass(1, []byte("b\n"), false); err != nil || len(rest) > 0 {
		t.Errorf("pass = %q, %v", rest, err)
	}
	r.tasksEnd()
	go r.finish()
	r.srun.toEnd()
	<-r.loop.done
}

// TestLabelledLimit: a labelled file grows to the user's limit of a file's size; the first line that is
// dropped is reported.
func TestLabelledLimit(t *testing.T) {
	dir := t.TempDir()
	cfg := labelled(dir, "out.%t")
	cfg.Opener.SizeMax = new(int64(10))
	r := begin(t, cfg)
	for _, text := range []string{"abc\n", "defgh\n", "i\n"} {
		if _, err := r.fd(4, 1).WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	r.tasksEnd()
	go r.finish()
	path := filepath.Join(dir, "out.4")
	said := strings.Join(slices.Collect(maps.Values(r.srun.toEnd())), "")
	if want := fmt.Sprintf("the output of the tasks is dropped: cannot write %s: file too large\n", path); strings.Count(said, want) != 1 {
		t.Errorf("srun gets %q, want %q in it once", said, want)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != " 4: abc\n 4" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// reachable is a folder of root's that every user reaches.
func reachable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestRootWritesAsUser: what is written to a labelled file is written as the user: the kernel then
// takes the set-user-ID bit away, and counts quota and the file system's reserve.
// TestWriteAsksNoSize: without a limit a write to a labelled file is one system call, whose result
// alone counts.
func TestWriteAsksNoSize(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	labelled, text := &file{File: f}, []byte("x")
	allocs := testing.AllocsPerRun(10, func() { // os.File.Stat allocates, Write does not
		if err := labelled.write(text); err != nil {
			t.Error(err)
		}
	})
	if allocs > 0 {
		t.Errorf("a write allocates %v times", allocs)
	}
}

func TestRootWritesAsUser(t *testing.T) {
	testkit.RequireRoot(t)
	dir := reachable(t)
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	cfg := labelled(dir, "out.%t")
	cfg.Opener.User = step.User{UID: 65534, GID: 65534, Groups: []uint32{65534}}
	r := begin(t, cfg)
	path := filepath.Join(dir, "out.4")
	if err := os.Chmod(path, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fd(4, 1).WriteString("a\n"); err != nil {
		t.Fatal(err)
	}
	r.tasksEnd()
	go r.srun.toEnd()
	r.finish()
	if text, err := os.ReadFile(path); err != nil || string(text) != " 4: a\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o755 {
		t.Errorf("the file is %v, %v: root has written to it", st.Mode(), err)
	}
}

// TestRootOpensAsUser: a file is made as the user, where the user may make one.
func TestRootOpensAsUser(t *testing.T) {
	testkit.RequireRoot(t)
	dir := reachable(t)
	cfg := labelled(dir, "out.%t")
	cfg.Opener.User = step.User{UID: 65534, GID: 65534, Groups: []uint32{65534}}
	r := connected(t, cfg)
	if err := r.Streams.Attach(r); !errors.Is(err, unix.EACCES) {
		t.Errorf("Attach in root's directory = %v", err)
	}
	go r.srun.toEnd()
	r.finish()

	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	r = begin(t, cfg)
	r.tasksEnd()
	go r.srun.toEnd()
	r.finish()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "out.4"), &st); err != nil || st.Uid != 65534 || st.Gid != 65534 || st.Mode&0o777 != 0o640 {
		t.Errorf("the file is %o of uid %d, gid %d, %v", st.Mode, st.Uid, st.Gid, err)
	}
}
