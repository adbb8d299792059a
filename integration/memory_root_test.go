package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/testkit"
)

// endedSteps is how many steps the attacker of TestRootMemoryFollowsBytes ends: STEPD_ENDED.
const endedSteps = 2000

// TestRootMemoryFollowsBytes: one user holds reservations of as many tasks as there can be, ends
// thousands of steps and lists them a hundred times at once, without reading and then with it. noded
// stays small, other clients are served, and another user's few steps are kept.
func TestRootMemoryFollowsBytes(t *testing.T) {
	n := startNode(t, site{Slurm: "MaxTasksPerNode=65533\n", Stepd: "KeepSteps=1000\n"})
	if r := n.do(t, call{args: []string{"run", "-J", "early", "true"}, uid: bob.uid}); r.code != 0 {
		t.Fatal(r)
	}
	alices := n.webAs(t, alice.uid)
	reserve := func(tasks int) (job uint32) {
		body := runBody(request(t, []string{"true"}, nil, func(doc map[string]any) { doc["overcommit"], doc["ntasks"] = true, tasks }))
		docs, err := post(t.Context(), alices, "reserve", body)
		var reply struct {
			JobID uint32 `json:"job_id"`
		}
		if err == nil {
			err = json.Unmarshal(docs[0], &reply)
		}
		if err != nil {
			t.Error(err)
		}
		return reply.JobID
	}
	cancel := func(job uint32) {
		if _, err := post(t.Context(), alices, "cancel", fmt.Appendf(nil, `{"schema":1,"job_id":%d,"step_id":0}`, job)); err != nil {
			t.Error(err)
		}
	}
	var held []uint32
	for range 34 {
		held = append(held, reserve(65533))
	}
	if t.Failed() {
		return
	}
	t.Logf("34 reservations of 65,533 tasks: noded has %d KiB", n.peakKB(t))
	steps := endedSteps
	if s := os.Getenv("STEPD_ENDED"); s != "" {
		var err error
		steps, err = strconv.Atoi(s)
		must(t, err)
	}
	began := time.Now()
	var ended atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ended.Add(1) <= int64(steps) && !t.Failed() {
				cancel(reserve(1))
			}
		})
	}
	wg.Wait()
	t.Logf("and %d ended steps, in %v: %d KiB", steps, time.Since(began).Round(time.Second), n.peakKB(t))

	var lists []net.Conn
	for range 100 {
		c := dialAs(t, n.socket(), alice.uid)
		lists = append(lists, c)
		_, err := c.Write([]byte("POST /v1/list HTTP/1.0\r\nContent-Length: 23\r\n\r\n{\"schema\":1,\"all\":true}"))
		must(t, err)
	}
	n.servesOthers(t, "beside 100 listings that are not read")
	var reads sync.WaitGroup
	for _, c := range lists {
		reads.Go(func() { _, _ = io.Copy(io.Discard, c) }) // to the close below, where it is not through
	}
	n.servesOthers(t, "beside 100 listings that are read at once")
	for _, c := range lists {
		c.Close()
	}
	reads.Wait()
	// One that is read to its end, as the table of ps and as a document.
	for _, args := range [][]string{{"ps", "-a"}, {"ps", "-a", "--json"}} {
		if r := n.do(t, call{args: args, limit: time.Minute}); r.code != 0 || strings.Count(r.out, "early") != 1 {
			t.Errorf("%q: exit code %d, %.200q; another user's step is listed %d times", args, r.code, r.err, strings.Count(r.out, "early"))
		}
	}
	peak := n.peakKB(t)
	t.Logf("with 100 listings: %d KiB", peak)
	if peak > 100<<10 {
		t.Errorf("noded has had %d KiB, want less than 100 MiB", peak)
	}
	for _, job := range held {
		cancel(job)
	}
	if size := dirBytes(t, n.path("spool")); size > 64<<20 {
		t.Errorf("the spool has %d bytes", size)
	}
	n.kill9(t)
	n.boot(t)
	t.Logf("after a restart: %d KiB", n.peakKB(t))
	if again := n.peakKB(t); again > 100<<10 {
		t.Errorf("noded has had %d KiB after its restart, want less than 100 MiB", again)
	}
}

// servesOthers fails the test where a call of another client than alice is not served in time, and
// prints the longest of each kind.
func (n *node) servesOthers(t *testing.T, when string) {
	t.Helper()
	var longest []string
	for _, c := range []call{
		{args: []string{"run", "-O", "true"}, uid: bob.uid},
		{args: []string{"ps"}, uid: bob.uid},
		{args: []string{"show", "1.0"}, uid: bob.uid},
		{args: []string{"node", "status"}, root: true},
	} {
		var most time.Duration
		for range servedSteps {
			began := time.Now()
			r := n.do(t, c)
			took := time.Since(began)
			if r.code != 0 || took > servedWithin*time.Duration(testkit.Slower()) {
				t.Errorf("%s stepctl %q took %v: %v", when, c.args, took, r)
			}
			most = max(most, took)
		}
		longest = append(longest, fmt.Sprintf("%s %v", c.args[0], most.Round(time.Millisecond)))
	}
	t.Logf("other clients %s, the longest of %d calls: %s", when, servedSteps, strings.Join(longest, ", "))
}

// peakKB is the most that noded has had in memory, in KiB.
func (n *node) peakKB(t *testing.T) int {
	t.Helper()
	field := strings.Fields(statusField(readFile(t, fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid)), "VmHWM"))
	kb, err := strconv.Atoi(field[0])
	must(t, err)
	return kb
}

// dirBytes is the size of the files in a folder.
func dirBytes(t *testing.T, dir string) (sum int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if info, ierr := d.Info(); ierr == nil { // else it has gone since
			sum += info.Size()
		}
		return err
	}))
	return sum
}

// dialAs connects to a socket as another user: the kernel's word on a peer is its thread's.
func dialAs(t testing.TB, socket string, uid uint32) net.Conn {
	t.Helper()
	c, err := connectAs(socket, uid)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func connectAs(socket string, uid uint32) (c net.Conn, err error) {
	err = asUser(uid, func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil { // it waits where the backlog is full
			unix.Close(fd)
			return err
		}
		f := os.NewFile(uintptr(fd), socket)
		defer f.Close()
		c, err = net.FileConn(f)
		return err
	})
	return c, err
}

// asUser calls f on a thread that is another user's.
func asUser(uid uint32, f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends with the goroutine
		const same = ^uintptr(0)
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
			err = errno
			return
		}
		err = f()
	}()
	<-done
	return err
}

// webAs is web as another user.
func (n *node) webAs(t testing.TB, uid uint32) *http.Client {
	t.Helper()
	c := web(func(context.Context) (net.Conn, error) { return connectAs(n.socket(), uid) })
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// TestRootConnectionsOfAll: users, and all uids that no name service knows together, have no more
// connections than leave root and others theirs, and a full backlog is waited for.
func TestRootConnectionsOfAll(t *testing.T) {
	// 600 descriptors are 100 connections of users, and 50 of one.
	n := startNode(t, site{Stepd: "MetricsListen=unix\n", Before: []string{"prlimit", "--nofile=600:600"}})
	n.serves(t)
	const perUser, told = 50, 16
	served := func(who string) {
		t.Helper()
		for _, c := range []call{{args: []string{"ps"}, root: true}, {args: []string{"ps"}, uid: bob.uid}, {args: []string{"run", "true"}, uid: bob.uid}} {
			if r := n.do(t, c); r.code != 0 {
				t.Errorf("%s: stepctl %q of uid %d: %v", who, c.args, c.uid, r)
			}
		}
	}
	// A hundred unknown uids, one connection each; those that are closed are seen as such.
	var conns []net.Conn
	for i := range uint32(100) {
		conns = append(conns, dialAs(t, n.socket(), 700000+i))
	}
	eventually(t, callTimeout, "the connections of unknown uids at their limit", func() error {
		if open := openOf(conns); open != perUser+told {
			return fmt.Errorf("%d are open, want %d", open, perUser+told)
		}
		return nil
	})
	served("beside unknown uids")
	count := fmt.Sprintf("\nstepd_requests_total{code=\"resource_exhausted\",verb=\"connect\"} %d\n", 100-perUser-told)
	if _, text := n.page(t, "/metrics"); !strings.Contains(text, count) {
		t.Errorf("the page lacks %q:\n%s", count, ourLines(text))
	}
	if r := n.do(t, call{args: []string{"ps"}, uid: 700001}); r.code == 0 {
		t.Error("an unknown uid is served beyond the limit of all of them")
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, callTimeout, "an unknown uid is served again", func() error {
		if r := n.do(t, call{args: []string{"ps"}, uid: 700001}); r.code != 0 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})

	// One user connects and goes as fast as can be, from many threads.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var churned atomic.Int64
	for range 32 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := connectAs(n.socket(), alice.uid)
				if err != nil {
					t.Error(err)
					return
				}
				churned.Add(1)
				c.Close()
			}
		})
	}
	for range 2 {
		served("beside churn")
	}
	close(stop)
	wg.Wait()
	t.Logf("%d connections came and went", churned.Load())
	if lines := strings.Count(n.log.String(), "connection closed"); lines > 100 {
		t.Errorf("%d lines of the log are about closed connections", lines)
	}
}

// openOf counts the connections that their server has not closed.
func openOf(conns []net.Conn) (open int) {
	for _, c := range conns {
		closed := slices.ContainsFunc(pollOf(c), func(events int16) bool { return events&(unix.POLLHUP|unix.POLLRDHUP) != 0 })
		if !closed {
			open++
		}
	}
	return open
}

func pollOf(c net.Conn) (events []int16) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if _, err := unix.Poll(p, 0); err == nil {
			events = []int16{p[0].Revents}
		}
	})
	return events
}

// TestRootFollowers: event logs that are followed take one instance of inotify, and a user follows
// a bounded number.
func TestRootFollowers(t *testing.T) {
	n := startNode(t, site{})
	p := n.start(t, call{args: []string{"run", "-J", "long", "sleep", "600"}})
	doc := n.runs(t, "long")
	follow := fmt.Appendf(nil, `{"schema":1,"job_id":%d,"step_id":%d,"follow":true}`, doc.JobID, doc.StepID)
	before := n.inotifies(t)
	const most = 64
	var follows []net.Conn
	for range most {
		c := dialAs(t, n.socket(), alice.uid)
		follows = append(follows, c)
		_, err := fmt.Fprintf(c, "POST /v1/events HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(follow), follow)
		must(t, err)
		b := make([]byte, 12)
		_, err = io.ReadFull(c, b)
		must(t, err)
		if string(b) != "HTTP/1.0 200" {
			t.Fatalf("a follower: %q", b)
		}
	}
	if _, err := post(t.Context(), n.webAs(t, alice.uid), "events", follow); api.CodeOf(err) != api.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	if now := n.inotifies(t); now != before+1 {
		t.Errorf("%d followers take %d instances of inotify, want 1", most, now-before)
	}
	if r := n.do(t, call{args: []string{"cancel", doc.id()}}); r.code != 0 {
		t.Error(r)
	}
	p.wait(t)
	for i, c := range follows {
		b, err := io.ReadAll(c)
		if err != nil || !bytes.Contains(b, []byte(`"event":"end"`)) || !bytes.HasSuffix(b, []byte("\"end\":true}\n")) {
			t.Errorf("follower %d has not seen the end: %v, %.300q", i, err, b)
		}
	}
	eventually(t, callTimeout, "no instance of inotify more than before", func() error {
		if now := n.inotifies(t); now != before {
			return fmt.Errorf("there are %d, before %d", now, before)
		}
		return nil
	})
}

// inotifies counts noded's instances of inotify.
func (n *node) inotifies(t *testing.T) (count int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	must(t, err)
	for _, fd := range fds {
		// One may be closed since.
		if link, err := os.Readlink(dir + "/" + fd.Name()); err == nil && link == "anon_inode:inotify" {
			count++
		}
	}
	return count
}
