package spank

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

// board is the memory that stepd shares with the host and, until they exec,
// with the tasks: where each of them is, and a journal of the hooks. A plugin
// may have written anything into it, so every number is checked when read.
type board struct {
	file    *os.File
	mem     []byte
	nslots  int
	entries int
}

// maxBoardEntries bounds the journal at 4 MiB; beyond it hooks are not timed.
const maxBoardEntries = 1 << 17

// newBoard sizes the journal for every hook of every plugin: eight in the
// host, four for each task.
func newBoard(ntasks, nplugins int) (*board, error) {
	entries := min(nplugins*(8+4*ntasks), maxBoardEntries)
	size := boardHeader + (ntasks+1)*boardSlotSize + entries*boardEntrySize
	fd, err := unix.MemfdCreate("spank-board", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("cannot create memfd %q: %w", "spank-board", err)
	}
	f := os.NewFile(uintptr(fd), "spank-board")
	if err := f.Truncate(int64(size)); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot size memfd %q to %d bytes: %w", "spank-board", size, err)
	}
	// A plugin that shrinks the file would make our reads fault.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot seal memfd %q: %w", "spank-board", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot map memfd %q: %w", "spank-board", err)
	}
	b := &board{file: f, mem: mem, nslots: ntasks + 1, entries: entries}
	b.word(0).Store(boardMagic)
	b.word(4).Store(hostProtocolVersion)
	b.word(8).Store(uint32(b.nslots))
	b.word(12).Store(uint32(entries))
	for i := range b.nslots {
		at := boardHeader + i*boardSlotSize
		b.word(at + 8).Store(noPlugin)
		b.word(at + 12).Store(noHook)
	}
	return b, nil
}

func (b *board) close() {
	b.file.Close()
	unix.Munmap(b.mem)
	b.mem = nil
}

// word is the 32-bit number at offset at, which is a multiple of 4 by construction.
func (b *board) word(at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b.mem[at]))
}

// long is the 64-bit number at offset at, which is a multiple of 8 by construction.
func (b *board) long(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.mem[at]))
}

// where reads slot 0 (local id -1) or the slot of a task. fault is why its
// process has ended itself there, 0 if it has not.
func (b *board) where(id int) (w launch.HostPlace, fault int) {
	i := id + 1
	if i < 0 || i >= b.nslots || b.mem == nil {
		return launch.HostPlace{Plugin: -1, Stage: stageName(0)}, 0
	}
	at := boardHeader + i*boardSlotSize
	stage := b.word(at).Load()
	w = launch.HostPlace{
		Stage:   stageName(stage),
		AtExec:  stage == stageExec,
		Errno:   int(int32(b.word(at + 4).Load())),
		Plugin:  -1,
		SinceNS: b.long(at + 16).Load(),
	}
	if h := b.word(at + 12).Load(); h != noHook {
		w.Hook = hookName(h)
		if p := b.word(at + 8).Load(); p != noPlugin && p <= 1<<16 {
			w.Plugin = int(p)
		}
	}
	if w.Errno < 0 {
		w.Errno, fault = 0, -w.Errno
	}
	return w, fault
}

// taskOf is the task for which the host was in a hook, -1 for none. The slot
// does not say: it is in the journal, as the last call that has no end.
func (b *board) taskOf(w launch.HostPlace) int {
	base := boardHeader + b.nslots*boardSlotSize
	for i := min(int(b.word(16).Load()), b.entries) - 1; i >= 0; i-- {
		at := base + i*boardEntrySize
		pluginHook := b.word(at + 20).Load()
		if int(int16(pluginHook)) != w.Plugin || hookName(pluginHook>>16) != w.Hook || b.long(at+8).Load() != 0 {
			continue
		}
		if r := b.word(at + 16).Load(); r != noRank && int64(r) < int64(b.nslots-1) {
			return int(r)
		}
		return -1
	}
	return -1
}

// journal copies the hooks from entry number from on. It stops at the first
// that still runs, so that the next call reports it whole; with last set,
// calls that never ended are reported too.
func (b *board) journal(from int, last bool) (hooks []launch.HookTime, next int) {
	if b.mem == nil {
		return nil, from
	}
	n := min(int(b.word(16).Load()), b.entries)
	base := boardHeader + b.nslots*boardSlotSize
	for ; from < n; from++ {
		at := base + from*boardEntrySize
		if b.word(at+28).Load() != 1 {
			if last {
				continue // its process died between taking and writing it
			}
			break
		}
		pluginHook := b.word(at + 20).Load()
		h := launch.HookTime{
			StartNS: b.long(at).Load(),
			EndNS:   b.long(at + 8).Load(),
			LocalID: -1,
			Plugin:  int(pluginHook & 0xffff),
			Hook:    hookName(pluginHook >> 16),
			RC:      int(int32(b.word(at + 24).Load())),
		}
		if r := b.word(at + 16).Load(); r != noRank && int64(r) < int64(b.nslots-1) {
			h.LocalID = int(r)
		}
		if h.EndNS == 0 && !last {
			break
		}
		hooks = append(hooks, h)
	}
	return hooks, from
}
