package stepnet

import "sync"

// pieceSize holds a frame of a chunk of output, or its body, or the chunk.
const pieceSize = frameHead + 16 + chunk

// pieces are the memory of output on its way: a stream at full speed would have the
// garbage collector run hundreds of times a second otherwise.
var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// newPiece is memory for n bytes, of the pool where they fit.
func newPiece(n int) []byte {
	if n > pieceSize {
		return make([]byte, n)
	}
	return pieces.Get().(*[pieceSize]byte)[:n]
}

// freePiece gives memory back. What is of the pool is known by its capacity; whoever
// cuts from the front of a piece keeps it from coming back.
func freePiece(b []byte) {
	if cap(b) == pieceSize {
		pieces.Put((*[pieceSize]byte)(b[:pieceSize]))
	}
}
