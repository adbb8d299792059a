package rpc

import (
	"bytes"
	"encoding/binary"

	"github.com/cloudflare/circl/xof/k12"

	"stepd/slurm/wire"
)

// hash is what a token holds: which message it signs. Slurm's kind 2 is KangarooTwelve of the
// body, with the message's type as customisation; kind 1, the type alone, is refused by sites
// with CommunicationParameters=block_zero_hash.
func hash(t wire.Type, body []byte) []byte {
	return append([]byte{2}, sum(body, binary.BigEndian.AppendUint16(nil, uint16(t)))...)
}

// sum is KangarooTwelve (RFC 9861) of 256 bits.
func sum(body, customisation []byte) []byte {
	b := make([]byte, 32)
	k12.Draft10Sum(b, body, customisation)
	return b
}

// signs reports whether a token's payload belongs to the message. Slurm answers with the kind
// of hash that it was asked with.
func signs(payload []byte, t wire.Type, body []byte) bool {
	return bytes.Equal(payload, hash(t, body))
}
