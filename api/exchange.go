package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/quickjson"
)

const (
	// RequestMax bounds a request, in bytes.
	RequestMax = 16 << 20
	// ReplyMax bounds a reply that is one document, and one line of a reply of several.
	ReplyMax = 64 << 20
	// headMax bounds the head of a reply, and refusalMax the document of a refusal.
	headMax    = 16 << 10
	refusalMax = 1 << 20
)

// VersionHeader is the header of requests and replies that has the API's version, Schema.
const VersionHeader = "Stepd-Api"

// TooLarge is the error for a request of n bytes, on either side.
func TooLarge(n int64) error {
	return Errorf(InvalidArgument, "request has %d bytes, the limit is %d: shorten the arguments or the environment", n, RequestMax)
}

// request is a type of this package that a client sends.
type request interface{ Stamp() }

// exchange is one request and its reply, on a connection of its own. net/http would cost
// a client 0.4 ms of CPU at its start, and HTTP/1.0 is all that is needed: the reply is
// neither chunked nor compressed.
type exchange struct {
	ctx    context.Context
	socket string
	conn   *os.File
	r      *bufio.Reader
	undo   func() bool // of the context's hold on conn
	head   replyHead
	left   int64 // bytes of a body of known length that have not been read
}

// call makes a call whose reply is one document.
func call[Reply any](ctx context.Context, c *Client, verb string, in request) (*Reply, error) {
	x, err := c.begin(ctx, verb, in)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	body, err := x.document(ReplyMax)
	if err != nil {
		return nil, err
	}
	out := new(Reply)
	if err := quickjson.Unmarshal(body, out); err != nil {
		return nil, x.garbled(err.Error())
	}
	return out, nil
}

// lines makes a call whose reply is a line for each document.
func (c *Client) lines(ctx context.Context, verb string, in request) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		x, err := c.begin(ctx, verb, in)
		if err != nil {
			yield(Line{}, err)
			return
		}
		defer x.Close()
		for {
			line, err := x.line()
			if err == nil && line.Error != nil {
				err = line.Error
			}
			if err == nil && line.End || !yield(line, err) || err != nil {
				return
			}
		}
	}
}

// begin sends a request and reads the head of its reply. A refusal is an *Error. The
// caller closes the exchange.
func (c *Client) begin(ctx context.Context, verb string, in request) (*exchange, error) {
	in.Stamp()
	body, err := quickjson.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	if len(body) > RequestMax {
		return nil, TooLarge(int64(len(body)))
	}
	conn, err := connect(ctx, c.Socket)
	if err != nil {
		return nil, err
	}
	x := &exchange{ctx: ctx, socket: c.Socket, conn: conn, r: bufio.NewReader(conn)}
	x.undo = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // it may be closed
	if err := x.ask(verb, c.Program, body); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// ask writes the request, reads the head of the reply, and a refusal to its end.
func (x *exchange) ask(verb, program string, body []byte) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /v1/%s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s: %d\r\n", verb, len(body), VersionHeader, Schema)
	if program != "" {
		fmt.Fprintf(&b, "User-Agent: %s\r\n", program)
	}
	b.WriteString("\r\n")
	b.Write(body)
	// noded may refuse a request before it has read all of it: then the write fails, and
	// the reply says why.
	_, werr := x.conn.Write(b.Bytes())
	var err error
	if x.head, err = readHead(x.r); err != nil {
		return x.broken(errors.Join(werr, err))
	}
	x.left = x.head.length
	if x.head.status == 200 {
		return nil
	}
	doc, err := x.document(refusalMax)
	if err != nil {
		return err
	}
	var r Refusal
	if quickjson.Unmarshal(doc, &r) != nil || r.Error == nil || r.Error.Code == "" {
		return Errorf(Unknown, "noded has answered with the HTTP status %d", x.head.status)
	}
	return r.Error
}

// Read reads the body of a reply of known length.
func (x *exchange) Read(p []byte) (int, error) {
	if x.left == 0 {
		return 0, io.EOF
	}
	n, err := x.r.Read(p[:min(int64(len(p)), x.left)])
	x.left -= int64(n)
	if err != nil {
		return n, x.broken(err)
	}
	return n, nil
}

// Close ends the exchange.
func (x *exchange) Close() error {
	x.undo()
	return x.conn.Close()
}

// document is the body of a reply of one document.
func (x *exchange) document(most int64) ([]byte, error) {
	if !x.head.known {
		return nil, x.garbled("its length is missing")
	}
	if x.left > most {
		return nil, x.garbled(fmt.Sprintf("%d bytes, the limit is %d", x.left, most))
	}
	return io.ReadAll(x)
}

// line is the next line of a reply of several documents.
func (x *exchange) line() (Line, error) {
	text, err := readLine(x.r, ReplyMax)
	if errors.Is(err, errLong) {
		return Line{}, x.garbled(err.Error())
	}
	if err != nil {
		return Line{}, x.broken(err)
	}
	var line Line
	if err := quickjson.Unmarshal(text, &line); err != nil {
		return Line{}, x.garbled(err.Error())
	}
	return line, nil
}

// broken is the error of a connection that has ended before its reply.
func (x *exchange) broken(err error) error {
	if cause := x.ctx.Err(); cause != nil {
		return ContextError(cause)
	}
	if bad, ok := errors.AsType[errHead](err); ok {
		return x.garbled(string(bad))
	}
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("the connection ended before the reply")
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the connection ended in the middle of the reply")
	}
	return &Error{Code: Unavailable, Message: fmt.Sprintf("cannot hear noded at %q: %v", x.socket, err)}
}

// garbled is the error of a reply that is not of this API.
func (x *exchange) garbled(why string) error {
	return Errorf(Internal, "cannot parse noded's reply: %s", why)
}

// replyHead is what a client needs of the head of a reply.
type replyHead struct {
	status int
	length int64 // of the body, where it is known
	known  bool
}

// errHead is what is wrong with the head of a reply.
type errHead string

func (e errHead) Error() string { return string(e) }

// errLong is that a line has no end within its limit.
var errLong = errors.New("a line is too long")

// readHead reads the status line and the headers.
func readHead(r *bufio.Reader) (h replyHead, err error) {
	room := headMax
	next := func() (string, error) {
		text, err := readLine(r, room)
		if errors.Is(err, errLong) {
			return "", errHead("its head is too long")
		}
		room -= len(text)
		return strings.TrimRight(string(text), "\r\n"), err
	}
	status, err := next()
	if err != nil {
		return h, err
	}
	proto, rest, _ := strings.Cut(status, " ")
	if proto != "HTTP/1.0" && proto != "HTTP/1.1" || len(rest) < 3 {
		return h, errHead("it is not HTTP: noded may be of an older release, and is to be restarted as this one")
	}
	if h.status, err = strconv.Atoi(rest[:3]); err != nil || h.status < 200 || h.status > 599 {
		return h, errHead(fmt.Sprintf("%.20q is no HTTP status", rest))
	}
	for {
		line, err := next()
		if err != nil || line == "" {
			return h, err
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return h, errHead(fmt.Sprintf("%.40q is no header", line))
		}
		if err := h.header(strings.ToLower(name), strings.Trim(value, " \t")); err != nil {
			return h, err
		}
	}
}

func (h *replyHead) header(name, value string) error {
	switch name {
	case "content-length":
		n, err := strconv.ParseUint(value, 10, 62)
		if err != nil || h.known && int64(n) != h.length {
			return errHead(fmt.Sprintf("%.40q is no length", value))
		}
		h.length, h.known = int64(n), true
	case "transfer-encoding", "content-encoding":
		return errHead(fmt.Sprintf("it has the %s %.40q, for which a client of HTTP/1.0 does not ask", name, value))
	}
	return nil
}

// readLine reads a line with its end, of at most so many bytes. A line without an end is
// io.ErrUnexpectedEOF.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, errLong
		}
		if line == nil && err == nil {
			return part, nil // until the next read
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// tryConnect connects once; a full queue of connections is waited for.
func tryConnect(ctx context.Context, path string) (*os.File, error) {
	fd, err := linux.Connect(ctx, unix.SOCK_STREAM, filepath.Dir(path), filepath.Base(path))
	if cause := ctx.Err(); cause != nil && err != nil {
		return nil, ContextError(cause)
	}
	if err != nil {
		words := err.Error()
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			words = "start it (systemctl start noded)"
		}
		return nil, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot connect to noded at %q: %s", path, words), cause: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Code says in one word why noded refused a request.
type Code string

// The codes. A client branches on them; the words of an error are for people.
const (
	OK                 Code = "ok"                  // no error
	Canceled           Code = "canceled"            // the client has gone
	DeadlineExceeded   Code = "deadline_exceeded"   // a deadline has passed
	InvalidArgument    Code = "invalid_argument"    // the request is wrong, whatever the node's state
	NotFound           Code = "not_found"           // no such job, step or process
	PermissionDenied   Code = "permission_denied"   // the caller is neither the owner nor root
	ResourceExhausted  Code = "resource_exhausted"  // the request does not fit, or is beyond a limit of its user
	FailedPrecondition Code = "failed_precondition" // the job's, the step's or the node's state forbids it
	Aborted            Code = "aborted"             // another request came first
	Unimplemented      Code = "unimplemented"       // no such request
	Internal           Code = "internal"            // noded could not do what it should
	Unavailable        Code = "unavailable"         // noded does not serve now: try again
	Unauthenticated    Code = "unauthenticated"     // the peer's identity is not known
	Unknown            Code = "unknown"             // an error without a code
)

// Error is noded's answer to a request that it refused or could not meet.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Waits completes "waiting for": the request would be met if it waited for this.
	// Empty where waiting would not help.
	Waits string `json:"waits,omitempty"`

	cause error // of an error of the client's own; nil of noded's
}

func (e *Error) Error() string { return e.Message }

// Unwrap is the cause of an error that arose at the client, such as the errno of a
// connection that failed.
func (e *Error) Unwrap() error { return e.cause }

// Denied is the answer to a client that is neither the owner nor root, with those who may.
func Denied(owner uint32) error {
	if owner == 0 {
		return NewError(PermissionDenied, "permission denied (only root may)")
	}
	return Errorf(PermissionDenied, "permission denied (only uid %d and root may)", owner)
}

// NewError returns an Error with this text.
func NewError(code Code, text string) error { return &Error{Code: code, Message: text} }

// Errorf returns an Error with a formatted text. It wraps nothing: what crosses the
// socket is the code and the words.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ContextError is the Error of a context that has ended, for the error of ctx.Err.
func ContextError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return NewError(DeadlineExceeded, err.Error())
	}
	return NewError(Canceled, err.Error())
}

// AsError returns the Error that err is or wraps.
func AsError(err error) (*Error, bool) {
	if e, ok := errors.AsType[*Error](err); ok {
		if error(e) == err {
			return e, true
		}
		return &Error{Code: e.Code, Message: err.Error(), Waits: e.Waits, cause: e.cause}, true // with the words of what wraps it
	}
	return nil, false
}

// CodeOf returns err's code: OK for nil, Unknown where it has none.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	if e, ok := AsError(err); ok {
		return e.Code
	}
	return Unknown
}

// MessageOf returns err's words, "" for nil.
func MessageOf(err error) string {
	if e, ok := AsError(err); ok {
		return e.Message
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// httpStatus are the statuses of replies; every other code's is 500.
var httpStatus = map[Code]int{
	OK: 200, InvalidArgument: 400, Unauthenticated: 401, PermissionDenied: 403, NotFound: 404, Aborted: 409,
	FailedPrecondition: 412, ResourceExhausted: 429, Canceled: 499 /* no reader is left */, Unimplemented: 501,
	Unavailable: 503, DeadlineExceeded: 504,
}

// HTTPStatus is the status of a reply with this code.
func (c Code) HTTPStatus() int { return cmp.Or(httpStatus[c], 500) }
