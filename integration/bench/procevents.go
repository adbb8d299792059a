package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel's process events (cn_proc.h, connector.h): forks, execs and exits
// with the kernel's own time, so that nothing is added to what is measured.
const (
	cnIdxProc     = 1
	cnValProc     = 1
	procListen    = 1
	eventFork     = 0x00000001
	eventExec     = 0x00000002
	eventExit     = 0x80000000
	netlinkHeader = 16
	cnHeader      = 20
	eventHeader   = 16
)

// kind is what happened to a process.
type kind int

const (
	forked kind = iota
	execed
	exited
)

// event is one of them. Parent is set for forked.
type event struct {
	kind   kind
	ns     uint64
	pid    int
	parent int
}

// recorder collects process events.
type recorder struct {
	fd int

	mu     sync.Mutex
	events []event // guarded by mu
	lost   bool    // guarded by mu: the kernel dropped some
}

// newRecorder subscribes; it needs root in the initial pid namespace.
func newRecorder() (*recorder, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		return nil, fmt.Errorf("cannot open a netlink connector: %w", err)
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	if err := onlyWanted(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: cnIdxProc}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot bind the netlink connector: %w", err)
	}
	// All events first, then only the three: a kernel before 6.6 takes the
	// first request and does not know the second.
	for _, request := range [][]uint32{{procListen}, {procListen, eventFork | eventExec | eventExit}} {
		if err := subscribe(fd, request); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	r := &recorder{fd: fd}
	go r.loop()
	return r, nil
}

// subscribe sends one request to the process connector.
func subscribe(fd int, request []uint32) error {
	b := make([]byte, netlinkHeader+cnHeader+4*len(request))
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint16(b[4:], unix.NLMSG_DONE)
	binary.LittleEndian.PutUint32(b[netlinkHeader:], cnIdxProc)
	binary.LittleEndian.PutUint32(b[netlinkHeader+4:], cnValProc)
	binary.LittleEndian.PutUint16(b[netlinkHeader+16:], uint16(4*len(request)))
	for i, v := range request {
		binary.LittleEndian.PutUint32(b[netlinkHeader+cnHeader+4*i:], v)
	}
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("cannot subscribe to process events: %w", err)
	}
	return nil
}

// onlyWanted lets the kernel drop the other events (each change of a uid or a
// name is one): to be woken for them would cost those that change more.
func onlyWanted(fd int) error {
	const what = netlinkHeader + cnHeader
	// A load gives network order, the event has the machine's: 1 reads as 0x01000000.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: what},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x01000000, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x02000000, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x00000080, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return fmt.Errorf("cannot filter process events: %w", err)
	}
	return nil
}

func (r *recorder) loop() {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(r.fd, buf, 0)
		if errors.Is(err, unix.ENOBUFS) {
			r.mu.Lock()
			r.lost = true
			r.mu.Unlock()
			continue
		}
		if err != nil {
			return
		}
		if e, ok := parseEvent(buf[:n]); ok {
			r.mu.Lock()
			r.events = append(r.events, e)
			r.mu.Unlock()
		}
	}
}

// parseEvent reads one message; thread events are left out.
func parseEvent(b []byte) (event, bool) {
	if len(b) < netlinkHeader+cnHeader+eventHeader+16 {
		return event{}, false
	}
	b = b[netlinkHeader+cnHeader:]
	word := func(i int) int { return int(binary.LittleEndian.Uint32(b[eventHeader+4*i:])) }
	e := event{ns: binary.LittleEndian.Uint64(b[8:])}
	switch binary.LittleEndian.Uint32(b) {
	case eventFork:
		e.kind, e.parent, e.pid = forked, word(1), word(3)
		return e, word(2) == word(3)
	case eventExec:
		e.kind, e.pid = execed, word(1)
		return e, true
	case eventExit:
		e.kind, e.pid = exited, word(1)
		return e, word(0) == word(1)
	}
	return e, false
}

// take returns what has happened since the last call.
func (r *recorder) take() ([]event, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		r.lost = false
		r.events = nil
		return nil, errors.New("the kernel dropped process events")
	}
	ev := r.events
	r.events = nil
	return ev, nil
}
