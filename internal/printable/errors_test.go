package printable

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestJoinErrors(t *testing.T) {
	one := errors.New("one")
	if err := JoinErrors(nil, nil); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	if err := JoinErrors(nil, one); err != one {
		t.Errorf("of one: %v", err)
	}
	err := JoinErrors(one, nil, fmt.Errorf("two: %w", io.EOF))
	if err.Error() != "one; two: EOF" || !errors.Is(err, one) || !errors.Is(err, io.EOF) {
		t.Errorf("of two: %v", err)
	}
}
