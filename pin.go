//go:build pin

package pin

import (
	_ "github.com/containerd/cgroups/v3"
	_ "github.com/containerd/cgroups/v3/cgroup1"
	_ "github.com/containerd/cgroups/v3/cgroup2"
	_ "github.com/coreos/go-systemd/v22/daemon"
	_ "github.com/cyphar/filepath-securejoin"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/moby/sys/mountinfo"
	_ "github.com/moby/sys/user"
	_ "github.com/opencontainers/runc/libcontainer/system"
	_ "github.com/opencontainers/runc/libcontainer/capabilities"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/sirupsen/logrus"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/cobra/doc"
	_ "go.etcd.io/bbolt"
	_ "google.golang.org/grpc"
	_ "google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/protobuf/proto"
	_ "golang.org/x/term"
	_ "golang.org/x/sync/errgroup"
	_ "github.com/mdlayher/netlink"
)
