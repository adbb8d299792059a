package task

import (
	"errors"
	"slices"

	"stepd/step"
)

// Files receives what the client sends with the step: *bcast.Receiver does.
type Files interface {
	// Write takes the next bytes of a file; Done is closed when all are there, or
	// one cannot be, of which Err tells. Close removes what the step alone needed.
	Write(p step.SentPiece) error
	Done() <-chan struct{}
	Err() error
	Close() error
}

// File takes bytes of a file that the client sends. It returns when they are
// written. It may be called from any goroutine, one at a time.
func (s *Step) File(p step.SentPiece) error {
	if s.d.Files == nil {
		return errors.New("cannot receive a file: the step was not to be sent any")
	}
	return s.d.Files.Write(p)
}

// receiveFiles waits until all files are there.
func (s *Step) receiveFiles() error {
	if s.d.Files == nil {
		return nil
	}
	select {
	case <-s.d.Files.Done():
		return s.d.Files.Err()
	case <-s.cancelled:
		reason, _ := s.cancelReason()
		return errCancelled{reason}
	}
}

// runSent makes the tasks run the program that is sent, and find its libraries.
func runSent(p *Plan) error {
	path, sent, err := p.Spec.SentProgram()
	if err != nil || !sent {
		return err
	}
	p.Spec.Argv = slices.Concat([]string{path}, p.Spec.Argv[1:])
	if len(p.Spec.Sent) < 2 {
		return nil
	}
	const name = "LD_LIBRARY_PATH"
	env, value := newEnvList(p.Env), path+step.LibsSuffix
	if i, ok := env.at[name]; ok && len(env.list[i]) > len(name)+1 {
		value += ":" + env.list[i][len(name)+1:]
	}
	env.set(name, value)
	p.Env = env.list
	return nil
}
