package file

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// record is a backend.Record of a keyspace. Its version is its data. Gates stand in every bucket,
// so that a grant sees them in the state that it changes; all else stands in the first bucket.
type record struct {
	data  string
	until int64 // 0: for ever
}

// over reports whether the record is forgotten.
func (r record) over(now int64) bool { return r.until != 0 && r.until <= now }

// Load implements [backend.Mover]. Each bucket is a place.
func (s *store) Load(ctx context.Context, prefix string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		places := s.buckets[:1]
		if prefix == backend.GateKey {
			places = s.buckets[:]
		}
		for i, b := range places {
			st, err := b.snapshot(ctx)
			if err != nil {
				yield(backend.Record{}, err)
				return
			}
			found := st.load(s.prefix, prefix)
			if len(found) == 0 && len(places) > 1 {
				found = []backend.Record{{Key: prefix}}
			}
			for _, r := range found {
				r.Place = strconv.Itoa(i)
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// load returns the records of a keyspace whose keys begin so, in their order.
func (st *state) load(prefix, begin string) []backend.Record {
	var found []backend.Record
	for k, r := range st.records {
		if k.prefix == prefix && strings.HasPrefix(k.name, begin) && !r.over(st.now) {
			rec := backend.Record{Key: k.name, Data: []byte(r.data), Version: r.data}
			found = append(found, rec)
		}
	}
	slices.SortFunc(found, func(a, b backend.Record) int { return cmp.Compare(a.Key, b.Key) })
	return found
}

// Swap implements [backend.Mover].
func (s *store) Swap(ctx context.Context, rs []backend.Record, keep time.Duration) error {
	for _, r := range rs {
		place, _ := strconv.Atoi(r.Place) // without one it stands in the first bucket
		err := s.buckets[place].update(ctx, func(st *state) (bool, error) {
			k := s.key(r.Key)
			if r.Version != backend.AnyVersion && r.Version != st.records[k].data {
				return false, backend.ErrGates
			}
			next := record{data: string(r.Data)}
			if keep > 0 {
				next.until = st.now + int64(keep)
			}
			if st.records[k] = next; r.Data == nil {
				delete(st.records, k)
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// gates returns all gates of a keyspace as one list, or nil.
func (st *state) gates(prefix string) *backend.Record {
	var list []string
	for _, r := range st.load(prefix, backend.GateKey) {
		list = append(list, r.Version)
	}
	if list == nil {
		return nil
	}
	all := "[" + strings.Join(list, ",") + "]"
	return &backend.Record{Key: backend.GateKey, Data: []byte(all), Version: all}
}

func version(r *backend.Record) string {
	if r == nil {
		return ""
	}
	return r.Version
}
