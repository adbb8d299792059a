package site

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// tellings is a hook of the log: each line is one.
type tellings chan struct{}

func (tellings) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

func (c tellings) Fire(*logrus.Entry) error {
	select {
	case c <- struct{}{}:
	default: // no caller waits any more
	}
	return nil
}

// TestTold: what takes its time is told, as long as it does, and what does not is not.
func TestTold(t *testing.T) {
	var b bytes.Buffer
	log := logrus.New()
	log.SetOutput(&b)
	want := errors.New("x")
	if err := toldEvery(log, "the spool", "mount it", time.Hour, time.Hour, func() error { return want }); err != want || b.Len() != 0 {
		t.Errorf("quick: %v, %q", err, &b)
	}
	told := make(tellings, 1)
	log.AddHook(told)
	err := toldEvery(log, "the spool", "mount it", time.Millisecond, time.Millisecond, func() error {
		<-told
		<-told
		return nil
	})
	if text := b.String(); err != nil || strings.Count(text, "the spool has not answered for") < 2 || !strings.Contains(text, "mount it") || !strings.Contains(text, "the spool has answered after") {
		t.Errorf("slow: %v, %q", err, text)
	}
}
