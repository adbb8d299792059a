package pmi2

import "time"

// Config bounds what the ranks of a step may ask of stepd. The zero value of
// each field means its default, which is named beside it.
type Config struct {
	// KeyBytes1 bounds a key or a service name under PMI-1, where clients are
	// get it as keylen_max: 256.
	KeyBytes1 int
	// KeyBytes2 bounds a key or a service name under PMI-2: 64, the
	// PMI2_MAX_KEYLEN that clients are compiled with.
	KeyBytes2 int
	// ValueBytes bounds a value or a port: 1024, the PMI2_MAX_VALLEN that
	// clients are compiled with; PMI-1 clients get it as vallen_max.
	ValueBytes int
	// FrameBytes bounds a PMI-1 line, a PMI-1 spawn block and a PMI-2 frame:
	// 65536.
	FrameBytes int
	// Attributes bounds the key=value pairs of one message: 1024.
	Attributes int
	// KeysPerRank bounds the keys that one rank may hold in the key value
	// space, in the node's attributes and in the name service together: 4096.
	KeysPerRank int
	// TotalBytes bounds the memory of all that the ranks store: 32 MiB.
	TotalBytes int
	// QueueBytes bounds the answers that wait for a rank that does not read:
	// 256 KiB. Beyond it the rank's connection is closed.
	QueueBytes int
	// WaitsPerRank bounds the node attributes that one rank may wait for at
	// the same time: 64.
	WaitsPerRank int
	// CloseGrace is how long a rank that closed its connection in the middle
	// is given to end, so that its exit status is known: 1 s.
	CloseGrace time.Duration
	// FenceTimeout bounds how long ranks wait in a fence for others that live:
	// then the step ends and the missing ranks are named. 0 is no bound.
	FenceTimeout time.Duration
}

// withDefaults fills what the site left out.
func (c Config) withDefaults() Config {
	set := func(field *int, value int) {
		if *field <= 0 {
			*field = value
		}
	}
	set(&c.KeyBytes1, 256)
	set(&c.KeyBytes2, 64)
	set(&c.ValueBytes, 1024)
	set(&c.FrameBytes, 64<<10)
	set(&c.Attributes, 1024)
	set(&c.KeysPerRank, 4096)
	set(&c.TotalBytes, 32<<20)
	set(&c.QueueBytes, 256<<10)
	set(&c.WaitsPerRank, 64)
	if c.CloseGrace <= 0 {
		c.CloseGrace = time.Second
	}
	return c
}
