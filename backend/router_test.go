package backend_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

func TestWeakest(t *testing.T) {
	strong := backend.Traits{
		Name: "strong", Fencing: backend.Durable, FIFO: true, DeadWaiter: 1, ClockFree: true,
		SurvivesNode: true, Transactional: true, Readers: true, Permits: 3,
		Grace: true, MinHold: true, LeasePerConn: false, MinTTL: 1, Resolution: 1, Revoked: 1, Margin: 1,
	}
	weak := backend.Traits{
		Name: "weak", Fencing: backend.Anchored, DeadWaiter: time.Second, LeasePerConn: true, MinTTL: time.Second,
		Resolution: time.Second, Revoked: time.Second, Margin: time.Second,
	}
	both := weak
	both.Name = "strong+weak"
	if got := backend.Weakest(strong, weak); got != both {
		t.Errorf("got %+v, want %+v", got, both)
	}
	both.Name = "weak+strong"
	if got := backend.Weakest(weak, strong, weak); got != both {
		t.Errorf("got %+v, want %+v", got, both)
	}
	silent := weak
	silent.Revoked = 0 // no promise
	for _, ts := range [][]backend.Traits{{strong, silent}, {silent, strong}} {
		if got := backend.Weakest(ts...).Revoked; got != 0 {
			t.Errorf("with one that promises nothing: got Revoked %v", got)
		}
	}
	if got := backend.Weakest(strong, strong); got != strong {
		t.Errorf("got %+v, want %+v", got, strong)
	}
	if got := backend.Weakest(); got != (backend.Traits{}) {
		t.Errorf("of nothing: got %+v", got)
	}
	// A field that Weakest forgets stays zero here, and so is not between the two.
	v := reflect.ValueOf(backend.Weakest(strong, strong))
	for i := range v.NumField() {
		if f := v.Type().Field(i).Name; v.Field(i).IsZero() && f != "LeasePerConn" {
			t.Errorf("%s is lost", f)
		}
	}
}
