package nodes

import (
	"encoding/json"
	"net"
	"os"
	"sync"
	"time"

	"stepd/api/stepapi"
	"stepd/daemon"
	"stepd/stepio/replay"
	"stepd/stepnet"
)

const (
	// firstWait bounds the words with which a watcher begins, which has them ready.
	firstWait = 2 * time.Second
	// replyWait bounds the answer.
	replyWait = 10 * time.Second
)

// watch shows the step's output to a watcher that comes over the network: it says what it
// wants to see, as to stepd's socket, and then the packets of the same connection go both
// ways. One that does not read misses output, as any that does not keep up.
func watch(conn net.Conn, view daemon.View) {
	conn.SetDeadline(time.Now().Add(firstWait))
	buf := make([]byte, stepnet.PacketMax)
	b, err := stepnet.ReadPacket(conn, buf)
	m := new(stepapi.Msg)
	if err != nil || json.Unmarshal(b, m) != nil || m.Watch == nil {
		return // no client of ours
	}
	conn.SetDeadline(time.Now().Add(replyWait))
	reply := &stepapi.Msg{Type: stepapi.TypeReply, Seq: m.Seq}
	watched, fd, err := view.Watch(m.Watch)
	if err != nil {
		reply.Error = err.Error()
		_ = stepnet.WritePacket(conn, encode(reply))
		return
	}
	local := os.NewFile(uintptr(fd), "the step's output")
	reply.Watched = watched
	if stepnet.WritePacket(conn, encode(reply)) != nil {
		local.Close()
		return
	}
	conn.SetDeadline(time.Time{})
	var typing sync.WaitGroup
	typing.Go(func() {
		defer local.Close() // it was the last that the other end had to say
		for {
			b, err := stepnet.ReadPacket(conn, buf)
			if err != nil {
				return
			}
			if _, err := local.Write(b); err != nil {
				return
			}
		}
	})
	frame := make([]byte, replay.FrameHead+replay.FrameMax)
	for {
		n, err := local.Read(frame)
		if err != nil || n == 0 || stepnet.WritePacket(conn, frame[:n]) != nil {
			break
		}
	}
	conn.Close()
	local.Close()
	typing.Wait()
}
