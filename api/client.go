package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/quickjson"
	"stepd/step"
)

// Client calls noded on its socket, each call on a connection of its own. Its methods
// may be called from several goroutines. Errors of noded's are *Error; where noded cannot
// be reached their code is Unavailable. A call ends with its context.
type Client struct {
	// Socket is the path of noded's socket, RUN/noded.sock. It may be of any length.
	Socket string
	// Program is the caller's name and version, such as "stepctl 1.4": noded names it
	// where it refuses the caller's version. It has no control characters.
	Program string
}

// Reach reports why noded's socket takes no connection, nil where it does.
func (c *Client) Reach(ctx context.Context) error {
	conn, err := connect(ctx, c.Socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Run starts a step and returns as soon as it has a number and a socket. The step goes on
// when the caller ends; Wait returns its result.
func (c *Client) Run(ctx context.Context, in *RunRequest) (*RunReply, error) {
	return call[RunReply](ctx, c, "run", in.packed())
}

// DryRun returns what Run would do. Nothing is started, and no number is spent.
func (c *Client) DryRun(ctx context.Context, in *RunRequest) (*DryRunReply, error) {
	return call[DryRunReply](ctx, c, "dryrun", in.packed())
}

// WillRun returns when Run or Alloc would start the request. Nothing is taken, and no number is
// spent.
func (c *Client) WillRun(ctx context.Context, in *RunRequest) (*WillRunReply, error) {
	return call[WillRunReply](ctx, c, "willrun", in.packed())
}

// Reserve is the first half of Run: the step has a number and is PENDING until Launch. It
// ends as CANCELLED by Cancel, by the end of the calling process, or after 10 minutes.
func (c *Client) Reserve(ctx context.Context, in *RunRequest) (*RunReply, error) {
	return call[RunReply](ctx, c, "reserve", in.packed())
}

// Launch starts a reserved step of the caller's.
func (c *Client) Launch(ctx context.Context, in *LaunchRequest) (*RunReply, error) {
	if in.Change != nil {
		packed := *in.Change
		packed.Pack()
		in = &LaunchRequest{StepRef: in.StepRef, Change: &packed}
	}
	return call[RunReply](ctx, c, "launch", in)
}

// Alloc makes a job without a step, for the life of the calling process or until Release.
func (c *Client) Alloc(ctx context.Context, in *RunRequest) (*AllocReply, error) {
	return call[AllocReply](ctx, c, "alloc", in.packed())
}

// Release ends a job of Alloc and returns when its epilog has run.
func (c *Client) Release(ctx context.Context, job uint32) error {
	return c.do(ctx, "release", &ReleaseRequest{JobID: job})
}

// Wait returns the final record when the step has ended; of a job the records of all its
// steps.
func (c *Client) Wait(ctx context.Context, ref StepRef) ([]*step.Record, error) {
	return records(c.lines(ctx, "wait", &RefRequest{StepRef: ref}))
}

// Show returns the record of a step, or of all steps of a job.
func (c *Client) Show(ctx context.Context, ref StepRef) ([]*step.Record, error) {
	return records(c.lines(ctx, "show", &RefRequest{StepRef: ref}))
}

// Stat is Show with what the tasks of running steps use at this moment.
func (c *Client) Stat(ctx context.Context, ref StepRef) ([]*step.Record, error) {
	return records(c.lines(ctx, "stat", &RefRequest{StepRef: ref}))
}

// List yields the records of all steps that have not ended, and with all the ended ones.
// Commands of other users' steps are empty. An error is the last pair.
func (c *Client) List(ctx context.Context, all bool) iter.Seq2[*step.Record, error] {
	return func(yield func(*step.Record, error) bool) {
		for line, err := range c.lines(ctx, "list", &ListRequest{All: all}) {
			if !yield(line.Step, err) {
				return
			}
		}
	}
}

// Overview is List with records whose lists of tasks may be empty.
func (c *Client) Overview(ctx context.Context, all bool) iter.Seq2[*step.Record, error] {
	return func(yield func(*step.Record, error) bool) {
		for line, err := range c.lines(ctx, "list", &ListRequest{All: all, NoTasks: true}) {
			if CodeOf(err) == InvalidArgument { // an older noded, which does not know the word
				c.List(ctx, all)(yield)
				return
			}
			if !yield(line.Step, err) {
				return
			}
		}
	}
}

// Signal sends a signal to a step, or to all steps of a job.
func (c *Client) Signal(ctx context.Context, in *SignalRequest) (*EndReply, error) {
	return call[EndReply](ctx, c, "signal", in)
}

// Cancel ends a step, or a job.
func (c *Client) Cancel(ctx context.Context, in *CancelRequest) (*EndReply, error) {
	return call[EndReply](ctx, c, "cancel", in)
}

// Suspend stops the tasks of a step, or of all steps of a job, which then takes no
// further ones. It returns when they stand still.
func (c *Client) Suspend(ctx context.Context, ref StepRef) error {
	return c.do(ctx, "suspend", &RefRequest{StepRef: ref})
}

// Unsuspend undoes Suspend. What root has suspended, only root resumes.
func (c *Client) Unsuspend(ctx context.Context, ref StepRef) error {
	return c.do(ctx, "unsuspend", &RefRequest{StepRef: ref})
}

// Adopt puts a process into the extern step of a job. Root only.
func (c *Client) Adopt(ctx context.Context, in *AdoptRequest) (*AdoptReply, error) {
	return call[AdoptReply](ctx, c, "adopt", in)
}

// Events yields the events of a step's log (docs/json.md), with follow until the step
// ends. An error is the last pair.
func (c *Client) Events(ctx context.Context, id step.ID, follow bool) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for line, err := range c.lines(ctx, "events", &EventsRequest{StepRef: Ref(id), Follow: follow}) {
			if !yield(line.Event, err) {
				return
			}
		}
	}
}

// Output returns what is kept of an ended step's output, in the format of package
// stepio/replay. The caller closes it. A read that ends early fails.
func (c *Client) Output(ctx context.Context, id step.ID) (io.ReadCloser, error) {
	x, err := c.begin(ctx, "output", &RefRequest{StepRef: Ref(id)})
	if err != nil {
		return nil, err
	}
	if !x.head.known {
		x.Close()
		return nil, x.garbled("its length is missing")
	}
	return x, nil
}

// Node returns the node's document (docs/json.md).
func (c *Client) Node(ctx context.Context) (json.RawMessage, error) {
	r, err := call[NodeReply](ctx, c, "node", &Empty{})
	if err != nil {
		return nil, err
	}
	return r.Node, nil
}

// Drain lets the node take no new jobs. Root only.
func (c *Client) Drain(ctx context.Context, reason string) error {
	return c.do(ctx, "drain", &DrainRequest{Reason: reason})
}

// Resume undoes Drain. Root only.
func (c *Client) Resume(ctx context.Context) error { return c.do(ctx, "resume", &Empty{}) }

// Config returns what a client takes from the node's configuration.
func (c *Client) Config(ctx context.Context) (*ConfigReply, error) {
	return call[ConfigReply](ctx, c, "config", &Empty{})
}

// packed is the request as JSON can carry it: words need not be UTF-8.
func (r *RunRequest) packed() *RunRequest {
	if r.Request == nil {
		return r
	}
	packed := *r.Request
	packed.Pack()
	return &RunRequest{Request: &packed}
}

// do makes a call whose reply says nothing.
func (c *Client) do(ctx context.Context, verb string, in request) error {
	_, err := call[Empty](ctx, c, verb, in)
	return err
}

// records are the records of a reply with several.
func records(lines iter.Seq2[Line, error]) (recs []*step.Record, err error) {
	for line, err := range lines {
		if err != nil {
			return nil, err
		}
		if line.Step != nil { // else it is of a later release
			recs = append(recs, line.Step)
		}
	}
	return recs, nil
}

// PublishedName is the file beside noded's socket with the ConfigReply that noded has given last.
const PublishedName = "client.json"

// publishedMax bounds that file, in bytes.
const publishedMax = 1 << 20

// Published returns the answer that noded has last given to Config, without a call: noded keeps it
// in a file beside its socket. The file says nothing of what has changed since, so the caller
// compares PlugstackDigest with what it reads itself, and calls Config where the two differ or
// where Published fails.
func (c *Client) Published() (*ConfigReply, error) {
	path := filepath.Join(filepath.Dir(c.Socket), PublishedName)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot stat %q: %w", path, err)
	}
	// The file names the plugins that this process loads: only root, or the caller, may have written it.
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("cannot use %q: it is no file that only root may write", path)
	}
	doc, err := io.ReadAll(io.LimitReader(f, publishedMax))
	if err != nil {
		return nil, err
	}
	r := new(ConfigReply)
	if err := quickjson.Unmarshal(doc, r); err != nil {
		return nil, fmt.Errorf("cannot parse %q: %w", path, err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("cannot use %q: its schema is %d, not %d", path, r.Schema, Schema)
	}
	return r, nil
}
