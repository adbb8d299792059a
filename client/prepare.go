package client

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/spank"
)

// UsesPlugins annotates verbs whose command line has the plugins' options: its
// value is the context.
const UsesPlugins = "spank-context"

// Prepare connects to noded, loads the plugins and makes their options flags of
// the verb c. args is the command line without the verb.
func (d *Dialer) Prepare(c *cobra.Command, args []string) error {
	seen := options.Peek(c, args)
	if seen.Topic != "" {
		fmt.Print(options.HelpOn(seen.Topic))
		return terminal.ExitError(0)
	}
	d.Socket, d.standalone = seen.Socket, seen.Standalone
	d.release = d.endOnSignal()
	if c.Flags().Lookup("standalone") != nil { // run
		if err := d.orStandalone(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	p, err := plugins.Load(ctx, d.Client(), ContextOf(c), d.hold)
	if err != nil {
		if seen.Help {
			terminal.Say("cannot list the plugins' options: %s", err)
			return nil
		}
		return err
	}
	d.Plugins = p
	p.AddFlags(c)
	// What was peeked at must be what is parsed.
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, argv []string) error {
		if d.Socket != seen.Socket || d.standalone != seen.Standalone {
			return fmt.Errorf("write --socket and --standalone before the plugins' options")
		}
		if check != nil {
			return check(c, argv)
		}
		return nil
	}
	return nil
}

// ContextOf is the context in which a verb loads plugins.
func ContextOf(c *cobra.Command) spank.Context {
	if c.Annotations[UsesPlugins] == spank.ContextAllocator.String() {
		return spank.ContextAllocator
	}
	return spank.ContextLocal
}
