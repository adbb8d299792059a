package report

import (
	"github.com/sirupsen/logrus"

	"stepd/step/launch"
)

// Log writes a line to the log of a step's daemon at the level that the step gives it.
func Log(log logrus.FieldLogger, level launch.LogLevel, text string) {
	switch level {
	case launch.LogError, launch.LogSpank:
		log.Error(text)
	case launch.LogWarning:
		log.Warn(text)
	case launch.LogInfo:
		log.Info(text)
	default:
		log.Debug(text)
	}
}
