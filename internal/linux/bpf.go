package linux

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DeviceRule is a device that a program refuses. Block is a block device, else it is one of
// characters.
type DeviceRule struct {
	Block        bool
	Major, Minor uint32
}

// bpfInsn is an instruction of BPF (linux/bpf.h).
type bpfInsn struct {
	op   uint8
	regs uint8 // source << 4 | destination
	off  int16
	imm  int32
}

// deviceProgram refuses the devices, whatever is done with them, and no other. The kernel
// calls it with {type | access << 16, major, minor}.
func deviceProgram(deny []DeviceRule) []bpfInsn {
	const load, and, equal, move, exit = 0x61, 0x54, 0x55, 0xb7, 0x95
	prog := []bpfInsn{{op: load, regs: 0x12}, {op: and, regs: 2, imm: 0xffff}, {op: load, regs: 0x13, off: 4}, {op: load, regs: 0x14, off: 8}}
	for _, d := range deny {
		kind := int32(2)
		if d.Block {
			kind = 1
		}
		prog = append(prog, // each jumps behind the last where it is another
			bpfInsn{op: equal, regs: 2, off: 4, imm: kind}, bpfInsn{op: equal, regs: 3, off: 3, imm: int32(d.Major)},
			bpfInsn{op: equal, regs: 4, off: 2, imm: int32(d.Minor)}, bpfInsn{op: move}, bpfInsn{op: exit})
	}
	return append(prog, bpfInsn{op: move, imm: 1}, bpfInsn{op: exit})
}

// DenyDevices refuses devices to every process in and below a directory of cgroup v2, which is
// open as dir, in place of what an earlier call has refused there. It holds until the directory
// is removed. Calls for the same directory may come at once, with the same devices.
func DenyDevices(dir int, deny []DeviceRule) error {
	old, err := devicePrograms(dir)
	if err != nil {
		return err
	}
	prog, err := loadDeviceProgram(deny)
	if err != nil {
		return err
	}
	defer unix.Close(prog)
	attach := struct{ target, prog, kind, flags uint32 }{uint32(dir), uint32(prog), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attach), unsafe.Sizeof(attach)); err != nil {
		return fmt.Errorf("cannot attach a device program: %w", err)
	}
	for _, id := range old {
		// Another call may have detached it meanwhile.
		if err := detachDevices(dir, id); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func detachDevices(dir int, id uint32) error {
	get := struct{ id, next, flags uint32 }{id: id}
	fd, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&get), unsafe.Sizeof(get))
	if err != nil {
		return fmt.Errorf("cannot open device program %d: %w", id, err)
	}
	defer unix.Close(fd)
	detach := struct{ target, prog, kind, flags uint32 }{uint32(dir), uint32(fd), unix.BPF_CGROUP_DEVICE, 0}
	if _, err := bpf(unix.BPF_PROG_DETACH, unsafe.Pointer(&detach), unsafe.Sizeof(detach)); err != nil {
		return fmt.Errorf("cannot detach device program %d: %w", id, err)
	}
	return nil
}

// devicePrograms are the numbers of the programs that are attached to a directory itself.
func devicePrograms(dir int) ([]uint32, error) {
	ids := make([]uint32, 64) // the kernel's limit for one directory
	query := struct {
		target, kind, flags, attachFlags uint32
		ids                              unsafe.Pointer
		count                            uint32
		_                                uint32
	}{target: uint32(dir), kind: unix.BPF_CGROUP_DEVICE, ids: unsafe.Pointer(&ids[0]), count: uint32(len(ids))}
	if _, err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&query), unsafe.Sizeof(query)); err != nil {
		return nil, fmt.Errorf("cannot list device programs: %w", err)
	}
	return ids[:query.count], nil
}

func loadDeviceProgram(deny []DeviceRule) (int, error) {
	prog, license := deviceProgram(deny), []byte("Apache\x00")
	load := struct {
		kind, count             uint32
		insns, license          unsafe.Pointer
		logLevel, logSize       uint32
		log                     uint64
		version, flags          uint32
		name                    [16]byte
		ifindex, expectedAttach uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(prog)),
		insns: unsafe.Pointer(&prog[0]), license: unsafe.Pointer(&license[0]), name: [16]byte{'s', 't', 'e', 'p', 'd', '_', 'd', 'e', 'v'},
	}
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&load), unsafe.Sizeof(load))
	if err != nil {
		return -1, fmt.Errorf("cannot load a device program: %w", err)
	}
	return fd, nil
}

// bpf is bpf(2). Descriptors that it returns are close-on-exec.
func bpf(cmd int, attr unsafe.Pointer, size uintptr) (int, error) {
	var fd uintptr
	err := IgnoringEINTR(func() error {
		n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(attr), size)
		fd = n
		if errno != 0 {
			return errno
		}
		return nil
	})
	runtime.KeepAlive(attr)
	return int(fd), err
}
