package etcd

import "sync"

const (
	// freeMost is how many ids are kept for later acquisitions, and freeOfOne how many of one name.
	freeMost  = 8192
	freeOfOne = 8
)

// ids tell the entries of a queue apart. A new id is the nonce of its first acquisition. Once that has been released, and nothing of it
// can be under way any more, the id goes to the next acquisition of that name: until etcd is compacted it looks at every key that has
// ever been in a range, so a name that is locked a thousand times a second would soon be slow if each time had a key of its own.
type ids struct {
	mu   sync.Mutex
	used map[string]string   // by nonce
	free map[string][]string // by queue
	kept map[string]struct{} // the free ones, and the used ones that were free before
	n    int                 // of free ones
}

func (s *ids) init() {
	s.used, s.free, s.kept = map[string]string{}, map[string][]string{}, map[string]struct{}{}
}

// take returns the id of an acquisition: the one that it has, or a free one, or a new one.
func (s *ids) take(queue, nonce string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.used[nonce]
	if ok {
		return id
	}
	id = nonce
	if free := s.free[queue]; len(free) > 0 {
		id = free[len(free)-1]
		if s.free[queue] = free[:len(free)-1]; len(free) == 1 {
			delete(s.free, queue)
		}
		s.n--
	}
	s.used[nonce] = id
	return id
}

// of returns the id of an acquisition; false if that has ended, and its id may be another's.
func (s *ids) of(nonce string) (id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok = s.used[nonce]; ok {
		return id, true
	}
	_, kept := s.kept[nonce]
	return nonce, !kept
}

// give ends an acquisition of which nothing is in the store nor under way: its id is free.
func (s *ids) give(queue, nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.used[nonce]
	delete(s.used, nonce)
	if !ok || len(s.free[queue]) == freeOfOne {
		delete(s.kept, id)
		return
	}
	s.free[queue] = append(s.free[queue], id)
	s.kept[id] = struct{}{}
	if s.n++; s.n > freeMost {
		s.shrink(queue)
	}
}

// shrink gives up the free ids of some other name; s.mu is held.
func (s *ids) shrink(but string) {
	for queue, free := range s.free {
		if queue == but {
			continue
		}
		for _, id := range free {
			delete(s.kept, id)
		}
		s.n -= len(free)
		delete(s.free, queue)
		return
	}
}

// drop ends an acquisition whose id is never used again.
func (s *ids) drop(nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, s.used[nonce])
	delete(s.used, nonce)
}
