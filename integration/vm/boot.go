package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// bootTimeout is how long the guest may take to its first word: 7 s on an
// idle machine.
const bootTimeout = 2 * time.Minute

// consoleTail is how many lines of a dead guest's console are shown.
const consoleTail = 40

// machine is the virtual hardware and where its words go.
type machine struct {
	img   image
	disk  string // the share
	out   string // folder for console and journal
	tmp   string
	accel string
	mem   int // MiB
	cpus  int
	// reboots: the guest boots itself again, once, and says so.
	reboots bool
}

func (m machine) console() string { return filepath.Join(m.out, "console.txt") }

func (m machine) arguments() []string {
	accel := m.accel
	cpu := "host"
	if accel == "tcg" {
		// With "max" the guest's kernel copies by rep movsb, a byte at a time in TCG, and saves
		// vector registers that are emulated as well: the tests take half as long again.
		accel, cpu = "tcg,thread=multi,tb-size=512", "Nehalem,+rdrand"
	}
	drive := func(file, more string) string {
		// A comma in a value is doubled (qemu(1), "-drive").
		return "if=virtio,format=raw," + more + ",file=" + strings.ReplaceAll(file, ",", ",,")
	}
	escape := func(file string) string { return strings.ReplaceAll(file, ",", ",,") }
	kernel := "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check " +
		"random.trust_cpu=on audit=0 apparmor=0 selinux=0 net.ifnames=0 psi=1 " +
		"systemd.unified_cgroup_hierarchy=1 systemd.show_status=0"
	reboot := "reset"
	if !m.reboots {
		reboot = "shutdown"
	}
	return append(m.sockets(),
		"-action", "reboot="+reboot,
		// Not microvm: it never exits.
		"-machine", "q35", "-accel", accel, "-cpu", cpu, "-m", strconv.Itoa(m.mem),
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none",
		"-kernel", m.img.path("vmlinuz"), "-initrd", m.img.path("initrd.gz"), "-append", kernel,
		"-drive", drive(m.img.path("rootfs.ext4"), "snapshot=on"),
		"-drive", drive(m.disk, "readonly=on"),
		"-serial", "file:"+escape(m.console()),
		"-device", "virtio-serial-pci",
		// Not stdio: the end of its input would close the port.
		"-chardev", "file,id=results,path=/dev/fd/3", "-device", "virtserialport,chardev=results,name=results",
		"-chardev", "file,id=journal,path="+escape(filepath.Join(m.out, "journal.txt")), "-device", "virtserialport,chardev=journal,name=journal",
	)
}

// sockets makes the guest a machine of two sockets, each with half of the CPUs and
// of the memory: what is bound to memory nodes shows nowhere else.
func (m machine) sockets() (args []string) {
	if m.cpus%2 != 0 {
		return []string{"-smp", strconv.Itoa(m.cpus)}
	}
	half := m.cpus / 2
	args = []string{"-smp", fmt.Sprintf("%d,sockets=2,cores=%d,threads=1", m.cpus, half)}
	for node, size := range []int{m.mem / 2, m.mem - m.mem/2} {
		args = append(args,
			"-object", fmt.Sprintf("memory-backend-ram,id=memory%d,size=%dM", node, size),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d-%d,memdev=memory%d", node, node*half, node*half+half-1, node))
	}
	return args
}

// boot runs the guest to its end, hands its output on line by line, and
// returns the exit status of its run.sh. An error means that the guest did not
// get so far; it has the tail of the console.
func (m machine) boot(ctx context.Context, timeout time.Duration, output io.Writer) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.arguments()...)
	cmd.Env = append(os.Environ(), "TMPDIR="+m.tmp) // the written blocks of the image
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	results, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer results.Close()
	cmd.ExtraFiles = []*os.File{write}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return 0, fmt.Errorf("cannot start the guest: %w", err)
	}
	watch := time.AfterFunc(min(bootTimeout, timeout), func() {
		cancel(fmt.Errorf("the guest has not come up within %v", min(bootTimeout, timeout)))
	})
	defer func() { watch.Stop() }()
	status, seen, err := follow(results, output, m.reboots, func() {
		watch.Stop()
		watch = time.AfterFunc(timeout, func() { cancel(fmt.Errorf("the guest was not done within %v (-timeout)", timeout)) })
	})
	if seen || err != nil {
		cancel(err) // it is not to boot once more
	}
	ended := cmd.Wait()
	switch {
	case seen:
		return status, nil
	case context.Cause(ctx) != nil:
		err = context.Cause(ctx)
	case err == nil && ended != nil:
		err = fmt.Errorf("qemu: %w", ended)
	case err == nil:
		err = errors.New("the guest ended without a word")
	}
	return 0, fmt.Errorf("%w\nqemu: %s\nthe console's last lines:\n%s", err, strings.TrimSpace(stderr.String()), tailOf(m.console()))
}

// follow copies the guest's lines and takes out the lines of recipe/vmtest
// and run.sh. A guest that boots again without having said so is an error.
func follow(from io.Reader, to io.Writer, reboots bool, up func()) (status int, seen bool, err error) {
	in := bufio.NewReader(from)
	boots := 1
	for {
		line, err := in.ReadString('\n')
		rest, exited := strings.CutPrefix(line, "VM-EXIT rc=")
		switch {
		case strings.HasPrefix(line, "VM-START "):
			if boots--; boots < 0 {
				return 0, false, errors.New("the guest has rebooted by itself")
			}
			up()
		case line == "VM-REBOOT\n" && reboots:
			boots, reboots = boots+1, false
		case exited:
			code, _, _ := strings.Cut(rest, " ")
			status, err = strconv.Atoi(code)
			return status, err == nil, err
		default:
			if _, err := io.WriteString(to, line); err != nil {
				return 0, false, err
			}
		}
		if err == io.EOF {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
	}
}

func tailOf(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-consoleTail):], "\n")
}
