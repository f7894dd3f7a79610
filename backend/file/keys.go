package file

import "hash/fnv"

// buckets is how many state files there are. It is part of the format.
const buckets = 64

// key is what a lock, or a record, stands under.
type key struct{ prefix, name string }

// bucket is the index of the bucket that a lock stands in. It is part of the format.
func (k key) bucket() int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.prefix + "\x00" + k.name)) // a hash returns no error
	sum := h.Sum64()
	return int((sum ^ sum>>32) % buckets)
}

func (s *store) key(name string) key { return key{s.prefix, name} }

// bucket returns where a name of this prefix is kept.
func (s *store) bucket(name string) *bucket { return s.buckets[s.key(name).bucket()] }
