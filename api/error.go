package api

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
	Code    Code
	Message string
	// Waits completes "waiting for": the request would be met if it waited for this.
	// Empty where waiting would not help.
	Waits string
}

func (e *Error) Error() string { return e.Message }

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
		return &Error{Code: DeadlineExceeded, Message: err.Error()}
	}
	return &Error{Code: Canceled, Message: err.Error()}
}

// AsError returns the Error that err is or wraps, or the Error of an answer of gRPC.
func AsError(err error) (*Error, bool) {
	if e, ok := errors.AsType[*Error](err); ok {
		if error(e) == err {
			return e, true
		}
		return &Error{e.Code, err.Error(), e.Waits}, true // with the words of what wraps it
	}
	if st, ok := status.FromError(err); ok && err != nil {
		e := &Error{Code: codeOfGRPC[st.Code()], Message: st.Message()}
		for _, d := range st.Details() {
			if w, ok := d.(*Waits); ok {
				e.Waits = w.GetWhat()
			}
		}
		return e, true
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

// GRPCStatus is what gRPC tells a client.
func (e *Error) GRPCStatus() *status.Status {
	code := codes.Unknown
	for c, mine := range codeOfGRPC {
		if mine == e.Code {
			code = c
		}
	}
	st := status.New(code, e.Message)
	if e.Waits != "" {
		if with, err := st.WithDetails(&Waits{What: e.Waits}); err == nil {
			return with
		}
	}
	return st
}

var codeOfGRPC = map[codes.Code]Code{
	codes.OK: OK, codes.Canceled: Canceled, codes.DeadlineExceeded: DeadlineExceeded, codes.InvalidArgument: InvalidArgument,
	codes.NotFound: NotFound, codes.PermissionDenied: PermissionDenied, codes.ResourceExhausted: ResourceExhausted,
	codes.FailedPrecondition: FailedPrecondition, codes.Aborted: Aborted, codes.Unimplemented: Unimplemented, codes.Internal: Internal,
	codes.Unavailable: Unavailable, codes.Unauthenticated: Unauthenticated, codes.Unknown: Unknown,
	codes.AlreadyExists: Aborted, codes.OutOfRange: InvalidArgument, codes.DataLoss: Internal,
}
