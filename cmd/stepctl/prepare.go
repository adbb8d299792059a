package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"stepd/spank"
)

// usesPlugins annotates verbs whose command line has the plugins' options: its
// value is the context.
const usesPlugins = "spank-context"

// prepare connects to noded, loads the plugins and makes their options flags of
// the verb c. args is the command line without the verb.
func (d *dialer) prepare(c *cobra.Command, args []string) error {
	seen := peek(c, args)
	if seen.topic != "" {
		fmt.Print(helpOn(seen.topic))
		return exitError(0)
	}
	d.socket, d.standalone = seen.socket, seen.standalone
	d.release = d.endOnSignal()
	if c.Flags().Lookup("standalone") != nil { // run
		if err := d.orStandalone(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	p, err := loadPlugins(ctx, d.client(), contextOf(c), d.hold)
	if err != nil {
		if seen.help {
			say("cannot list the plugins' options: %s", err)
			return nil
		}
		return err
	}
	d.plugins = p
	p.addFlags(c)
	// What was peeked at must be what is parsed.
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, argv []string) error {
		if d.socket != seen.socket || d.standalone != seen.standalone {
			return fmt.Errorf("write --socket and --standalone before the plugins' options")
		}
		if check != nil {
			return check(c, argv)
		}
		return nil
	}
	return nil
}

// contextOf is the context in which a verb loads plugins.
func contextOf(c *cobra.Command) spank.Context {
	if c.Annotations[usesPlugins] == spank.ContextAllocator.String() {
		return spank.ContextAllocator
	}
	return spank.ContextLocal
}
