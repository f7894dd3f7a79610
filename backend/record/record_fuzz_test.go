package record

import (
	"encoding/json"
	"testing"
	"time"
)

// Whatever a store has under a key, it is refused, or a record that is written as it was read.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"", "{}", "x", `{"token":-1}`, `{"token":7,"holder":{"nonce":"a","since":1,"keep":2}}`,
		`{"queue":[{"nonce":"a"}]}`, `{"token":1}}x`, `{"token":9007199254740993}`, `null`, `{"holder":{"keep":-1}}`,
		`{"holder":{"nonce":"0123456789abcdef0123456789abcdef","since":9223372036854775807,"keep":3000}}`,
		`{"holder":{"nonce":"0123456789abcdef0123456789abcdef","keep":9007199254740991}}`,
	} {
		f.Add([]byte(s))
	}
	at := time.UnixMicro(1_700_000_000_000_000)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data, at)
		if err != nil {
			return
		}
		if r.Token < 0 {
			t.Errorf("%q: token %d", data, r.Token)
		}
		if h := r.Holder; h != nil && h.Since >= at.UnixMicro() && r.left(at.UnixMicro()) <= 0 {
			t.Errorf("%q: a lease to come counts as over", data)
		}
		r.tidy(at.UnixMicro())
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if _, err := decode(text, at); err != nil {
			t.Errorf("%q: written as %q, which is refused: %v", data, text, err)
		}
	})
}
