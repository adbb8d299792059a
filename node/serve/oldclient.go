package serve

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"

	"stepd/api"
)

const (
	// oldTime and oldFrames bound what is read from a client of an older release.
	oldTime   = 5 * time.Second
	oldFrames = 64

	frameHeadBytes = 9 // RFC 9113, 4.1
	frameHeaders   = 1
	frameSettings  = 4
	flagAck        = 1 // of frameSettings
	flagsEnd       = 5 // of frameHeaders: END_STREAM and END_HEADERS
)

// refuseHTTP2 answers a client of a release that spoke gRPC, which has begun with the
// preface of HTTP/2, in its own words.
func (s *Server) refuseHTTP2(c *call) {
	why := fmt.Sprintf("noded is %s and speaks version %d of its API by HTTP/1.1; this client is of an older release, which speaks gRPC: update stepctl", s.Version, api.Schema)
	s.logRefused(c.peer.UID, "a client of an older release, which speaks gRPC")
	conn, buf, err := c.control.Hijack()
	if err != nil {
		return // it has gone
	}
	defer conn.Close()
	if conn.SetDeadline(time.Now().Add(oldTime)) != nil {
		return
	}
	_ = answerGRPC(buf, conn, why) // the client's end, or the deadline
}

// answerGRPC answers each call that comes by r, behind the preface's first line, with
// FAILED_PRECONDITION and a message (gRPC over HTTP/2, Trailers-Only). Of HTTP/2 it does
// what a client needs for that.
func answerGRPC(r io.Reader, w io.Writer, message string) error {
	if _, err := io.CopyN(io.Discard, r, int64(len("SM\r\n\r\n"))); err != nil {
		return err
	}
	if _, err := w.Write(frame(frameSettings, 0, 0, nil)); err != nil {
		return err
	}
	for range oldFrames {
		var head [frameHeadBytes]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, r, size); err != nil {
			return err
		}
		var answer []byte
		switch kind, flags := head[3], head[4]; {
		case kind == frameSettings && flags&flagAck == 0:
			answer = frame(frameSettings, flagAck, 0, nil)
		case kind == frameHeaders:
			stream := binary.BigEndian.Uint32(head[5:]) &^ (1 << 31)
			answer = frame(frameHeaders, flagsEnd, stream, trailers(message))
		}
		if _, err := w.Write(answer); err != nil {
			return err
		}
	}
	return nil
}

// frame is one frame of HTTP/2.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// trailers is the block of headers of an answer that is an error and nothing else.
func trailers(message string) []byte {
	b := []byte{0x88} // :status 200, an entry of the static table (RFC 7541, appendix A)
	const failedPrecondition = "9"
	for _, f := range [][2]string{
		{"content-type", "application/grpc"}, {"grpc-status", failedPrecondition}, {"grpc-message", strings.ReplaceAll(message, "%", "%25")},
	} {
		b = append(b, 0x10) // a literal that is never indexed, with a new name (6.2.3)
		b = hpackString(hpackString(b, f[0]), f[1])
	}
	return b
}

// hpackString appends a string without Huffman's code (RFC 7541, 5.2 and 5.1).
func hpackString(b []byte, s string) []byte {
	n := len(s)
	if n < 127 {
		return append(append(b, byte(n)), s...)
	}
	b = append(b, 127)
	for n -= 127; n >= 128; n /= 128 {
		b = append(b, byte(n%128+128))
	}
	return append(append(b, byte(n)), s...)
}
