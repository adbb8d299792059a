// Package api is noded's service, generated from node.proto, and how to reach
// it: a unix socket on which the kernel says who is at the other end.
//
// A client begins with Dial and NewNodeClient; noded serves with
// Credentials as its transport credentials and asks PeerOf in each method.
package api
