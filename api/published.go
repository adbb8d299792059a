package api

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/quickjson"
)

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
