package node

// API is what clients may ask of a node, for package serve: it implements serve.Backend. Make it
// with Node.API.
type API struct {
	launcher
	steps
	machine
}

// API returns the node's side of the API. Which client may do what is decided by its caller.
func (n *Node) API() API { return API{launcher{n}, steps{n}, machine{n}} }

// launcher makes steps and jobs; it decides for which user (run.go, reserve.go, launch.go,
// alloc.go, adopt.go, dryrun.go).
type launcher struct{ *Node }

// steps are the steps that a node knows, and what is asked of them (steps.go, control.go,
// events.go, output.go).
type steps struct{ *Node }

// machine is the node as a whole (status.go, published.go).
type machine struct{ *Node }
