package slurmstepd

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/sirupsen/logrus"

	"stepd/slurmconf"
)

// logLine writes lines as Slurm's daemons do: time, step, level, text.
type logLine struct{ step string }

// Format implements logrus.Formatter.
func (f logLine) Format(e *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "[%s] [%s] ", e.Time.Format("2006-01-02T15:04:05.000"), f.step)
	switch e.Level {
	case logrus.InfoLevel:
	case logrus.WarnLevel:
		b.WriteString("warning: ")
	default:
		fmt.Fprintf(&b, "%s: ", e.Level)
	}
	b.WriteString(strings.ReplaceAll(e.Message, "\n", "\n    "))
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// The levels of SlurmdDebug, as slurmd sends them (slurm.h).
const (
	levelInfo    = 3
	levelVerbose = 4
)

// logEarly logs an error of a time at which slurmd has not said where its log is, or cannot be
// understood: where slurm.conf has it. Where that has none either, the error is slurmd's alone.
func logEarly(text string) {
	host, err := os.Hostname()
	if err != nil {
		return
	}
	c, err := slurmconf.LoadSlurmd(os.Getenv("SLURM_CONF"), host, "")
	if err != nil || c.SlurmdLogFile == "" {
		return
	}
	log, f := openLog(c.SlurmdLogFile, "slurmstepd", levelInfo)
	log.Error(text)
	if f != nil {
		f.Close()
	}
}

// openLog logs to slurmd's file. Where there is none it is nil, and the log goes to what
// the program has as its stderr.
func openLog(path, step string, level uint32) (*logrus.Logger, *os.File) {
	log := logrus.New()
	log.SetFormatter(logLine{step})
	switch {
	case level < levelInfo:
		log.SetLevel(logrus.ErrorLevel)
	case level > levelVerbose:
		log.SetLevel(logrus.DebugLevel)
	}
	if path == "" {
		return log, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		log.Errorf("cannot open slurmd's log: %v", err)
		return log, nil
	}
	log.SetOutput(f)
	return log, f
}
