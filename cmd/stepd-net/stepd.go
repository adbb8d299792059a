// Command stepd-net is stepd for a step of several nodes: the same program with
// what the nodes say to each other, whose libraries would cost each step of one
// node 0.6 ms and 2.6 MB. noded starts it.
package main

import (
	"stepd/daemon"
	"stepd/daemon/nodes"
)

func main() { daemon.Main(&daemon.Several{Join: nodes.Join, Reach: nodes.Reach}) }
