package stepnet

import "fmt"

// Neighbours are the node ids of a node's parent and children, for a fan-out as in Limits.
func Neighbours(self, nodes, fanOut int) (peers []int, err error) {
	t := tree{self, nodes, Limits{FanOut: fanOut}.withDefaults().FanOut}
	if self < 0 || self >= nodes {
		return nil, fmt.Errorf("a step of %d nodes has no node %d", nodes, self)
	}
	if !t.root() {
		peers = append(peers, t.parent())
	}
	return append(peers, t.children()...), nil
}

// tree is the shape: node i is the parent of i*fan+1 to i*fan+fan.
type tree struct{ self, nodes, fan int }

func (t tree) parent() int { return (t.self - 1) / t.fan } // not for the root

func (t tree) root() bool { return t.self == 0 }

func (t tree) children() []int {
	var c []int
	for i := t.self*t.fan + 1; i <= t.self*t.fan+t.fan && i < t.nodes; i++ {
		c = append(c, i)
	}
	return c
}

// towards is the neighbour on the way to another node: a child, or else the
// parent.
func (t tree) towards(to int) int {
	for at := to; at > t.self; at = (at - 1) / t.fan {
		if (at-1)/t.fan == t.self {
			return at
		}
	}
	return t.parent()
}

// below reports whether node is in the subtree of top.
func (t tree) below(node, top int) bool {
	for node > top {
		node = (node - 1) / t.fan
	}
	return node == top
}

// meeting is the lowest node that has all of them below it.
func (t tree) meeting(nodes []int) int {
	top := nodes[0]
	for _, n := range nodes[1:] {
		for top != n {
			if top > n {
				top = (top - 1) / t.fan
			} else {
				n = (n - 1) / t.fan
			}
		}
	}
	return top
}
