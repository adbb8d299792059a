// Package stepapi is what stepd says on its socket, RUN/steps/J.S.sock, and
// on the pair that it inherits from noded: JSON records on SOCK_SEQPACKET,
// one record a packet, descriptors beside them.
//
// It is not ttrpc because descriptors travel in it (a client's streams), and
// because loading the protobuf runtime costs each step 0.6 ms of its launch
// (ADR 0004). Both ends begin with a Hello; fields may be added, none goes.
package stepapi
