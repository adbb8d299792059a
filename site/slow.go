package site

import (
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
)

const (
	// slowAfter is how long something may take in silence that asks file systems.
	slowAfter = 2 * time.Second
	// slowEvery is how often it is reported again.
	slowEvery = 30 * time.Second
)

// Told does f, and says so in the log and to systemd as long as f does not end: a
// file system whose server is gone holds each caller, and an
// administrator must not have to guess which.
func Told(log *logrus.Logger, what, remedy string, f func() error) error {
	return toldEvery(log, what, remedy, slowAfter, slowEvery, f)
}

func toldEvery(log *logrus.Logger, what, remedy string, after, every time.Duration, f func() error) error {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		began := time.Now()
		timer := time.NewTimer(after)
		defer timer.Stop()
		for said := false; ; said = true {
			select {
			case <-done:
				if said {
					log.Infof("%s has answered after %v", what, time.Since(began).Round(time.Second))
				}
				return
			case <-timer.C:
				log.Errorf("%s has not answered for %v: %s", what, time.Since(began).Round(time.Second), remedy)
				// An error could only say that no service manager listens.
				_, _ = daemon.SdNotify(false, fmt.Sprintf("STATUS=waiting for %s", what))
				timer.Reset(every)
			}
		}
	}()
	err := f()
	close(done)
	<-ended
	return err
}
