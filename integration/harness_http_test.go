package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"stepd/api"
)

// web is noded's API as a client in any language has it: the standard library's HTTP, by
// connections that dial makes.
func web(dial func(ctx context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 8,
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}
}

// web opens noded's API as root, without stepctl between.
func (n *node) web(t testing.TB) *http.Client {
	t.Helper()
	c := web(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", n.socket())
	})
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// post sends a request and returns the documents of its reply, a line each. A refusal is an
// *api.Error, and so is a reply that is cut off.
func post(ctx context.Context, c *http.Client, verb string, body []byte) ([][]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://noded/v1/"+verb, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r, err := c.Do(req)
	if err != nil {
		return nil, api.NewError(api.Unavailable, err.Error())
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, api.NewError(api.Unavailable, err.Error())
	}
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	var last api.Line
	err = json.Unmarshal(lines[len(lines)-1], &last)
	switch {
	case err != nil:
		return nil, api.Errorf(api.Unknown, "status %d: %.200q: %v", r.StatusCode, b, err)
	case last.Error != nil:
		return nil, last.Error
	case r.StatusCode != http.StatusOK:
		return nil, api.Errorf(api.Unknown, "status %d: %.200q", r.StatusCode, b)
	case r.Header.Get("Content-Type") != "application/jsonl":
		return lines, nil
	case !last.End:
		return nil, api.Errorf(api.Unavailable, "the reply has no end: %.200q", b)
	}
	return lines[:len(lines)-1], nil
}

// runBody is the body of run with this step.Request.
func runBody(request []byte) []byte { return fmt.Appendf(nil, `{"schema":1,"request":%s}`, request) }
