package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// ErrDenied is the answer to a client that is neither the owner nor root.
var ErrDenied = NewError(PermissionDenied, "permission denied")

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
