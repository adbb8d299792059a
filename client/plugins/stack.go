package plugins

import (
	"context"
	"errors"

	"stepd/api"
	"stepd/spank"
)

// stackTries bounds how often the node's stack is read until it is the node's.
// noded waits for a writer at each of them.
const stackTries = 10

// NodeStack reads the node's plugin stack as the caller. The kernel does not
// report to a user that a process is writing a file; it reports it to noded, whose digest of
// a stack that it has read whole must equal ours: the digest that noded has published, or, where
// the files have changed since, the one that it takes for this call.
func NodeStack(ctx context.Context, client *api.Client) (*api.ConfigReply, spank.Stack, error) {
	var none spank.Stack
	if conf, err := client.Published(); err == nil {
		if stack, err := readStack(conf); err == nil && stack.Digest == conf.PlugstackDigest {
			return conf, stack, nil
		}
	}
	for range stackTries {
		conf, err := client.Config(ctx)
		if err != nil {
			return nil, none, err
		}
		if conf.PlugstackError != "" {
			return nil, none, errors.New(conf.PlugstackError)
		}
		stack, err := readStack(conf)
		if err == nil && stack.Digest != conf.PlugstackDigest {
			continue
		}
		return conf, stack, err
	}
	return nil, none, errors.New("cannot read the node's plugin stack: what is read here is not what noded reads; it is being changed, or this process sees other files than noded")
}

// readStack reads the stack that the configuration names.
func readStack(conf *api.ConfigReply) (spank.Stack, error) {
	stack, err := spank.ReadStack(conf.Plugstack, conf.PluginDirs)
	if err == nil && conf.RequireSafe {
		err = stack.RequireSafe()
	}
	return stack, err
}
