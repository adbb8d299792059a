package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// RequestMax bounds a request, in bytes.
const RequestMax = 16 << 20

// ReplyMax bounds what a client of Dial takes: lists hold many documents.
const ReplyMax = 64 << 20

// Dial returns a client connection to noded's socket. It does not connect
// before the first call; a call to a socket that refuses fails with
// codes.Unavailable. A request beyond RequestMax is refused here by name.
func Dial(socket string) (*grpc.ClientConn, error) {
	abs, err := filepath.Abs(socket)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve %q: %w", socket, err)
	}
	return grpc.NewClient("passthrough:///noded",
		grpc.WithTransportCredentials(Credentials()),
		grpc.WithAuthority("noded"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialUnix(ctx, abs) }),
		grpc.WithUnaryInterceptor(limitRequest),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(ReplyMax)),
	)
}

func limitRequest(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if m, ok := req.(proto.Message); ok {
		if n := proto.Size(m); n > RequestMax {
			return TooLarge(n)
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// TooLarge is the error for a request of n bytes, on either side.
func TooLarge(n int) error {
	return status.Errorf(codes.InvalidArgument, "request has %d bytes, the limit is %d: shorten the arguments or the environment", n, RequestMax)
}

// dialUnix connects through the directory's descriptor, because sun_path
// holds 108 bytes.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %q: %w", path, err)
	}
	defer unix.Close(dir)
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
	if err != nil {
		var errno unix.Errno
		if errors.As(err, &errno) {
			err = errno // without the name below /proc, which says nothing to a user
		}
		return nil, fmt.Errorf("cannot connect to %q: %w", path, err)
	}
	return c, nil
}
