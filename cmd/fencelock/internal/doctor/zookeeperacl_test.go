package doctor

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"testing"
	"time"
)

// The server is killed as soon as it has granted the session, and the client library connects again.
func TestZooKeeperGreetingOfTheFirstConnection(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for first := true; ; first = false {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if first {
				size := make([]byte, 4)
				_, _ = io.ReadFull(conn, size)
				_, _ = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(size)))
				granted := make([]byte, 4+36)
				binary.BigEndian.PutUint32(granted, 36)
				binary.BigEndian.PutUint32(granted[8:], 4000)
				binary.BigEndian.PutUint64(granted[12:], 1)  // the session
				binary.BigEndian.PutUint32(granted[20:], 16) // bytes of its password
				_, _ = conn.Write(granted)
			}
			_ = conn.Close()
		}
	}()
	x := newExam()
	x.u = &url.URL{Scheme: "zookeeper", Host: l.Addr().String() + "," + l.Addr().String()}
	dials, returned := 0, make(chan struct{})
	x.now = func() time.Time {
		if dials++; dials == 2 { // before dialZoo has taken in what the first has said, if it can
			select {
			case <-returned:
			case <-time.After(300 * time.Millisecond):
			}
		}
		return time.Now()
	}
	s, err := dialZoo(t.Context(), x, time.Minute)
	close(returned)
	must(t, err)
	defer s.Close()
	if s.granted != 4*time.Second {
		t.Errorf("granted %v, want 4s", s.granted)
	}
}
