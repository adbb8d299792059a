package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/internal/linux"
)

// publishedConfig is the file RUN/client.json: the last answer to a client's "config". A client
// that reads it saves a call, and reads the plugin stack with the digest that stands in it
// (api.Client.Published). The zero value publishes nothing.
type publishedConfig struct {
	path string
	log  *logrus.Logger

	mu   sync.Mutex
	last []byte // guarded by mu: what the file has
}

// put publishes an answer. One without a digest is of no use to a client, which must ask again.
func (p *publishedConfig) put(reply *api.ConfigReply) {
	if p.path == "" || reply.PlugstackError != "" {
		return
	}
	stamped := *reply
	stamped.Stamp()
	doc, err := json.Marshal(&stamped)
	if err != nil {
		return // the answer itself says it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes.Equal(doc, p.last) {
		return
	}
	err = linux.WriteWhole(p.path, false, func(w io.Writer) error {
		_, err := w.Write(doc)
		return errors.Join(err, w.(*os.File).Chmod(0o644))
	})
	if err != nil {
		p.log.Warnf("clients call for the configuration, which cannot be published: %v", err)
		return
	}
	p.last = doc
}

// remove takes the file away.
func (p *publishedConfig) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = nil
	if err := os.Remove(p.path); err != nil && p.path != "" && !errors.Is(err, os.ErrNotExist) {
		p.log.Warnf("cannot remove the published configuration: %v", err)
	}
}

// ClientConfig is what a client takes from the configuration. It is published as well.
func (n machine) ClientConfig() *api.ConfigReply {
	c := &n.cfg
	spank := c.Site.Spank
	reply := &api.ConfigReply{
		Node: c.NodeName, CPUs: len(c.CPUs), MaxTasks: c.MaxTasks, MPIDefault: c.MPIDefault, MPITypes: c.MPITypes,
		Plugstack: spank.Plugstack, PluginDirs: spank.PluginDirs, Cluster: c.Site.Cluster,
		AllowReleases: spank.AllowReleases, HookTimeoutS: spank.HookTimeoutS, SpankStrict: spank.Strict, SlurmConf: c.Site.SlurmConf,
		RequireSafe: spank.RequireSafe, InteractiveStep: c.InteractiveStep,
	}
	if c.StackDigest != nil {
		digest, err := c.StackDigest()
		reply.PlugstackDigest = digest
		if err != nil {
			reply.PlugstackError = err.Error()
		}
	}
	n.published.put(reply)
	return reply
}
