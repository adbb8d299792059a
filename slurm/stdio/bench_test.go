package stdio

import (
	"bytes"
	"io"
	"testing"
)

// BenchmarkStdout measures one task's output to an srun that only reads.
func BenchmarkStdout(b *testing.B) {
	for _, c := range []struct {
		name string
		line []byte
	}{{"text", bytes.Repeat([]byte("x"), 79)}, {"binary", nil}} {
		b.Run(c.name, func(b *testing.B) {
			const size = 16 << 20
			block := make([]byte, 64<<10)
			if c.line != nil {
				block = bytes.Repeat(append(c.line, '\n'), 800)
			}
			b.SetBytes(size)
			for b.Loop() {
				r := begin(b, config(1))
				go func() {
					for n := 0; n < size; n += len(block) {
						_, _ = r.fd(4, 1).Write(block)
					}
					r.tasksEnd()
					r.finish()
				}()
				_, _ = io.Copy(io.Discard, r.srun.r)
				r.srun.Close()
				<-r.loop.done
			}
		})
	}
}

// BenchmarkStdin measures srun's input to one task.
func BenchmarkStdin(b *testing.B) {
	const size = 16 << 20
	block := bytes.Repeat(append(header{kind: stdinAll, size: dataMax}.append(nil), make([]byte, dataMax)...), 64)
	b.SetBytes(size)
	for b.Loop() {
		r := begin(b, config(1))
		go func() {
			for n := 0; n < size; n += 64 << 10 {
				_, _ = r.srun.Write(block)
			}
			r.srun.Close()
		}()
		if n, err := io.Copy(io.Discard, r.fd(4, 0)); n != size {
			b.Fatalf("the task reads %d bytes, %v", n, err)
		}
		r.tasksEnd()
		r.finish()
	}
}

// BenchmarkLaunch256 measures what 256 tasks cost that write a line each.
func BenchmarkLaunch256(b *testing.B) {
	for b.Loop() {
		r := begin(b, config(256))
		for rank := 4; rank < 260; rank++ {
			_, _ = r.fd(rank, 1).WriteString("n1\n")
		}
		r.tasksEnd()
		go r.finish()
		_, _ = io.Copy(io.Discard, r.srun.r)
		r.srun.Close()
		<-r.loop.done
	}
}
