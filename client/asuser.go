package client

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/client/plugins"
	"stepd/client/terminal"
)

// fileReader reads files that a step's tasks have written.
type fileReader interface {
	// read gives take what is in a regular file.
	read(path string, take func(b []byte)) error
	close()
}

// newFileReader reads as the user of the step, who has chosen the paths: root reads
// nothing there that the user could not.
func newFileReader(uid uint32) (fileReader, error) {
	if os.Geteuid() != 0 || uid == 0 {
		return ownFiles{}, nil
	}
	return newUserFiles(uid)
}

// ownFiles reads as the caller.
type ownFiles struct{}

func (ownFiles) close() {}

func (ownFiles) read(path string, take func(b []byte)) error {
	// To open a device, or one end of a FIFO, is an act of its own: look before.
	at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %q: %w", path, err)
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return fmt.Errorf("stat %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%q is no regular file", path)
	}
	f, err := os.Open(fmt.Sprint("/proc/self/fd/", at))
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			err = os.ErrPermission
		}
		return fmt.Errorf("open %q: %w", path, err)
	}
	defer f.Close()
	buf := make([]byte, answerMax)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			take(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %q: %w", path, err)
		}
	}
}

// ReaderName is this program's name as a child that reads files as another user.
const ReaderName = "stepctl: reads output"

// A question is a path that ends with a NUL, an answer pieces: a kind, a length and as many
// bytes.
const (
	answerData  = 'd'
	answerEnd   = 'e'
	answerError = 'x'

	answerMax = 64 << 10
)

// userFiles reads in a child that is the user. The bytes are read there, too, and not
// by a descriptor of the child's: some files look at who reads them.
type userFiles struct {
	cmd *exec.Cmd
	to  io.WriteCloser
	raw io.ReadCloser
	out *bufio.Reader
}

func newUserFiles(uid uint32) (*userFiles, error) {
	cred, err := credentialOf(uid)
	if err != nil {
		return nil, err
	}
	// What the caller's shell has left open is nothing for the user.
	if err := closeOnExec(); err != nil {
		return nil, err
	}
	u := &userFiles{cmd: &exec.Cmd{Path: "/proc/self/exe", Args: []string{ReaderName}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}}
	// The user may trace the child, who is to reach nothing of the caller's by it, the
	// terminal first of all.
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setsid: true}
	if u.to, err = u.cmd.StdinPipe(); err == nil {
		u.raw, err = u.cmd.StdoutPipe()
	}
	if err == nil {
		err = u.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read as uid %d: %w", uid, err)
	}
	u.out = bufio.NewReaderSize(u.raw, answerMax)
	return u, nil
}

func (u *userFiles) close() {
	u.to.Close()
	u.raw.Close()
	_ = u.cmd.Process.Kill() // it may have ended
	_ = u.cmd.Wait()         // what it said is all that counts
}

func (u *userFiles) read(path string, take func(b []byte)) error {
	if _, err := io.WriteString(u.to, path+"\x00"); err != nil {
		return fmt.Errorf("ask for %q: %w", path, err)
	}
	for {
		var head [5]byte
		_, err := io.ReadFull(u.out, head[:])
		n := binary.BigEndian.Uint32(head[1:])
		if err == nil && n > answerMax {
			err = fmt.Errorf("an answer of %d bytes", n)
		}
		b := make([]byte, min(n, answerMax))
		if err == nil {
			_, err = io.ReadFull(u.out, b)
		}
		switch {
		case err != nil:
			return fmt.Errorf("read %q as its user: %w", path, err)
		case head[0] == answerData:
			take(b)
		case head[0] == answerError:
			return errors.New(terminal.Escape(string(b)))
		case head[0] == answerEnd:
			return nil
		}
	}
}

// ServeReader is the child: it answers until its input or output is closed.
func ServeReader(in io.Reader, out io.Writer) {
	gone := false
	put := func(kind byte, b []byte) {
		_, err := out.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(b))), b...))
		gone = gone || err != nil // a broken standard output ends a Go program even before
	}
	for questions := bufio.NewReader(in); !gone; {
		path, err := questions.ReadString(0)
		if err != nil {
			return
		}
		if err := (ownFiles{}).read(strings.TrimSuffix(path, "\x00"), func(b []byte) { put(answerData, b) }); err != nil {
			put(answerError, []byte(err.Error()))
		} else {
			put(answerEnd, nil)
		}
	}
}

// credentialOf is who a user is, with all groups, as the name service says.
func credentialOf(uid uint32) (*syscall.Credential, error) {
	answer, err := plugins.AskNames(fmt.Sprintf("uid %d", uid))
	if err != nil {
		return nil, fmt.Errorf("cannot look up uid %d: %w", uid, err)
	}
	cred := &syscall.Credential{Uid: uid}
	gid, err := strconv.ParseUint(answer["gid"], 10, 32)
	if err != nil || answer["uid"] != fmt.Sprint(uid) {
		return nil, fmt.Errorf("cannot look up uid %d: the name service's answer has uid %q and gid %q", uid, answer["uid"], answer["gid"])
	}
	cred.Gid = uint32(gid)
	for word := range strings.SplitSeq(answer["groups"], ",") {
		g, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("cannot look up uid %d: the name service's answer has groups %q", uid, answer["groups"])
		}
		cred.Groups = append(cred.Groups, uint32(g))
	}
	return cred, nil
}

// closeOnExec lets children have none of the descriptors that this process was given
// besides the first three.
func closeOnExec() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("cannot mark inherited descriptors close-on-exec: %w", err)
	}
	return nil
}
