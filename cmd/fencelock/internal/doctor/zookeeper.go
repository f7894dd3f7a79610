package doctor

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/release"
	"github.com/fencelock/fencelock/internal/servers/stores"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

const (
	// fewConns is a limit of connections from one address that is low for several programs on a host.
	fewConns = 10
	// shortSession is below what servers grant by default. The client library waits for it seven
	// times as long.
	shortSession = 200 * time.Millisecond
	// heavySession is half of what servers can read back as one transaction by default, in bytes.
	heavySession = 1 << 20
	// notServing is the answer of a server without a quorum.
	notServing = "not currently serving requests"
)

// zookeeper examines each server by its four-letter words, and the ensemble by a session.
func (x *exam) zookeeper(ctx context.Context) (err error) {
	if x.secure, err = tlsurl.Config(x.u.Scheme == "zookeepers", x.q, "use zookeepers://"); err != nil {
		return err
	}
	serving := 0
	var silent error
	for _, host := range backend.Hosts(x.u, "2181") {
		up, err := x.zooServer(ctx, host)
		if err != nil {
			silent = err
			x.add("zookeeper-down", host, "no answer")
			continue
		}
		x.saw(host)
		if up {
			serving++
		}
	}
	switch {
	case len(x.report.Servers) == 0:
		return silent
	case serving == 0:
		return nil // without a quorum no session is granted
	}
	return x.zooSession(ctx)
}

// zooServer asks one server. up says that it may be serving.
func (x *exam) zooServer(ctx context.Context, host string) (up bool, err error) {
	var answer string
	fastest := askMost
	for range looks {
		began := time.Now()
		if answer, err = x.fourLetters(ctx, host, "srvr"); err != nil {
			return false, err
		}
		fastest = min(fastest, time.Since(began)/2) // connecting is the other half
	}
	x.judgeTrip(host, fastest)
	var hidden []string
	switch fields := lines(answer, ":"); {
	case strings.Contains(answer, notServing):
		x.add("zookeeper-no-quorum", host, "not serving")
		return false, nil
	case fields["Mode"] == "":
		hidden = append(hidden, "srvr")
	default:
		if v := fields["Zookeeper version"]; release.Older(v, x.least["zookeeper"]) {
			number, _, _ := strings.Cut(v, "-")
			x.add("zookeeper-version", host, number)
		}
		switch fields["Mode"] {
		case "standalone":
			x.add("zookeeper-single", host, "standalone")
		case "observer":
			x.add("zookeeper-observer", host, "observer")
		case "read-only":
			x.add("zookeeper-no-quorum", host, "read-only")
			return false, nil
		}
	}
	answer, err = x.fourLetters(ctx, host, "conf")
	if err != nil {
		return true, err
	}
	conf := lines(answer, "=")
	if most, err := strconv.Atoi(conf["maxClientCnxns"]); err != nil {
		hidden = append(hidden, "conf")
	} else if most > 0 && most < fewConns {
		x.add("zookeeper-connections", host, conf["maxClientCnxns"])
	}
	tick, shortest := number(conf["tickTime"]), number(conf["minSessionTimeout"])
	if shortest < 2*tick {
		x.add("zookeeper-tick", host,
			fmt.Sprintf("%d ms, with a tickTime of %d ms", shortest, tick))
	}
	dump, err := x.fourLetters(ctx, host, "dump")
	if err != nil || !strings.Contains(dump, "Sessions with Ephemerals") {
		hidden = append(hidden, "dump")
	} else if session, load := heaviest(dump); load > heavySession {
		x.add("zookeeper-session-heavy", host,
			fmt.Sprintf("%s, whose paths have %d bytes", session, load))
	}
	if len(hidden) > 0 {
		x.add("zookeeper-words-unseen", host, strings.Join(hidden, ", "))
	}
	return true, nil
}

// number reads a number of a server's settings; 0 if there is none.
func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// heaviest is the session whose ephemeral nodes have the longest paths together, of a dump: lines
// with a session and a colon, and below each lines with a tab and a path.
func heaviest(dump string) (session string, most int) {
	now, load := "", 0
	for line := range strings.Lines(dump) {
		line = strings.TrimRight(line, "\n")
		path, node := strings.CutPrefix(line, "\t/")
		switch {
		case node && now != "":
			const sizes = len("/") + 4
			if load += len(path) + sizes; load > most {
				session, most = now, load
			}
		case strings.HasPrefix(line, "0x") && strings.HasSuffix(line, ":"):
			now, load = strings.TrimSuffix(line, ":"), 0
		default:
			now = ""
		}
	}
	return session, most
}

// zooDial connects to a server, as the URL says.
func (x *exam) zooDial(ctx context.Context, network, host string) (net.Conn, error) {
	if x.secure == nil {
		return new(net.Dialer).DialContext(ctx, network, host)
	}
	return (&tls.Dialer{Config: x.secure}).DialContext(ctx, network, host)
}

// fourLetters sends a four-letter word.
func (x *exam) fourLetters(ctx context.Context, host, word string) (string, error) {
	return stores.FourLetters(ctx, x.zooDial, host, word)
}

// lines takes text of "key<sep>value" lines apart.
func lines(text, sep string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, sep); ok {
			fields[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	return fields
}

// zooSession opens the shortest and the longest session, and looks whether the driver can make
// leases of them, at the ensemble and at the rights.
func (x *exam) zooSession(ctx context.Context) error {
	shortest, err := dialZoo(ctx, x, shortSession)
	if err != nil {
		return err
	}
	shortest.Close()
	s, err := dialZoo(ctx, x, 24*time.Hour)
	if err != nil {
		return err
	}
	defer s.Close()
	// As the driver has it: package zookeeper, "Time".
	upkeep := shortest.granted/2*5/4 + 50*time.Millisecond
	covers := max(0, (s.granted-upkeep)*24/25).Truncate(time.Millisecond)
	switch {
	case covers < x.ttl:
		x.add("zookeeper-session-short", s.Server(),
			fmt.Sprintf("%v, which covers %v, with a TTL of %v", s.granted, covers, x.ttl))
	case shortest.granted > x.ttl+x.ttl/6+upkeep:
		x.add("zookeeper-session-long", s.Server(),
			fmt.Sprintf("%v, with a TTL of %v", shortest.granted, x.ttl))
	}
	x.zooClock(ctx, s)
	x.zooEnsemble(ctx, s)
	return x.zooRights(ctx, s)
}

// zooClock reads the server's clock from its list of connections, which has the time when the session s
// began.
func (x *exam) zooClock(ctx context.Context, s *zooSession) {
	text, err := x.fourLetters(ctx, s.Server(), "cons")
	_, rest, found := strings.Cut(text, "sid=0x"+strconv.FormatUint(uint64(s.SessionID()), 16)+",")
	_, rest, dated := strings.Cut(rest, "est=")
	digits, _, _ := strings.Cut(rest, ",")
	ms, bad := strconv.ParseInt(digits, 10, 64)
	if err != nil || !found || !dated || bad != nil {
		x.add("zookeeper-clock-unseen", s.Server(), "cons")
		return
	}
	x.judge(s.Server(), sample{time.UnixMilli(ms).Sub(s.opened.Add(s.took / 2)), s.took}, 0)
}

// zooEnsemble checks the number of voters.
func (x *exam) zooEnsemble(ctx context.Context, s *zooSession) {
	data, err := zooAsk(ctx, func() ([]byte, error) {
		data, _, err := s.Get("/zookeeper/config")
		return data, err
	})
	if err != nil {
		x.add("zookeeper-ensemble-unseen", "", "/zookeeper/config")
		return
	}
	voters, observers := 0, 0
	for line := range strings.Lines(string(data)) {
		switch {
		case !strings.HasPrefix(line, "server."):
		case strings.Contains(line, ":observer"):
			observers++
		default:
			voters++
		}
	}
	switch {
	case voters == 2:
		x.add("zookeeper-few", "", "2")
	case voters > 2 && voters%2 == 0:
		x.add("zookeeper-even", "", strconv.Itoa(voters))
	}
	if observers > 0 {
		x.add("zookeeper-observers", "", strconv.Itoa(observers))
	}
}

// zooSession is a session of the doctor's own.
type zooSession struct {
	*zk.Conn
	granted time.Duration // the timeout that the server grants
	opened  time.Time     // by our clock, just before the request
	took    time.Duration // until the grant
}

// greeting keeps the beginning of a connection's first frame, which the client library does not tell. The
// frame is the server's answer to the request for a session, with the timeout in its bytes 8 to 11.
type greeting struct {
	net.Conn
	head *[]byte
}

func (g greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if left := 12 - len(*g.head); left > 0 {
		*g.head = append(*g.head, p[:min(n, left)]...)
	}
	return n, err
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// dialZoo opens a session. The servers grant the length that is nearest to what is asked for.
func dialZoo(ctx context.Context, x *exam, length time.Duration) (*zooSession, error) {
	var head []byte // of the latest connection, as opened is; the client library has one at a time
	var opened time.Time
	s := &zooSession{}
	up := make(chan struct{})
	var once sync.Once
	dial := func(network, address string, _ time.Duration) (net.Conn, error) {
		one, cancel := context.WithTimeout(ctx, askMost)
		defer cancel()
		conn, err := x.zooDial(one, network, address)
		if err != nil {
			return nil, err
		}
		head, opened = nil, x.now()
		return greeting{conn, &head}, nil
	}
	began := time.Now()
	conn, events, err := zk.Connect(backend.Hosts(x.u, "2181"), length,
		zk.WithDialer(dial), zk.WithHostProvider(&tlsurl.ByName{}), zk.WithLogger(quiet{}), zk.WithLogInfo(false),
		zk.WithEventCallback(func(e zk.Event) {
			if e.State == zk.StateHasSession {
				once.Do(func() {
					s.granted = time.Duration(binary.BigEndian.Uint32(head[8:])) * time.Millisecond
					s.opened = opened
					close(up)
				})
			}
		}))
	if err != nil {
		return nil, err
	}
	s.Conn = conn
	go func() {
		for range events { // they came to the callback; Close ends it
		}
	}()
	select {
	case <-up:
	case <-time.After(2 * askMost):
		err = errors.New("no server of the ensemble grants a session")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil && x.u.User != nil {
		password, _ := x.u.User.Password()
		_, err = zooAsk(ctx, func() (struct{}, error) {
			return struct{}{}, conn.AddAuth("digest", []byte(x.u.User.Username()+":"+password))
		})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	s.took = time.Since(began)
	return s, nil
}

// zooAsk bounds a call of the client library, which knows no ctx. The goroutine ends when the
// connection is closed.
func zooAsk[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := call()
		done <- answer{v, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	select {
	case a := <-done:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// zooRights checks that the user has all rights on the nodes of the prefix, and may make missing nodes.
func (x *exam) zooRights(ctx context.Context, s *zooSession) error {
	root := strings.TrimSuffix(x.u.Path, "/") + "/" + zooName(x.prefix)
	for _, node := range []string{"", "/locks", "/tokens", "/tokens/00", "/done", "/clients"} {
		need, err := int32(zk.PermAll&^zk.PermAdmin), error(nil)
		at := root + node
		for {
			var acl []zk.ACL
			acl, err = zooAsk(ctx, func() ([]zk.ACL, error) {
				acl, _, err := s.GetACL(at)
				return acl, err
			})
			if errors.Is(err, zk.ErrNoNode) && at != "/" {
				at, need = path.Dir(at), zk.PermCreate|zk.PermRead
				continue
			}
			if err == nil && !x.allowed(acl, need) {
				err = zk.ErrNoAuth
			}
			break
		}
		switch {
		case errors.Is(err, zk.ErrNoAuth):
			x.add("zookeeper-rights", "", at)
			return nil // one is enough
		case err != nil:
			return err
		}
	}
	return nil
}

// allowed reports whether an ACL gives the user all of these rights.
func (x *exam) allowed(acl []zk.ACL, need int32) bool {
	name, id := "", ""
	if x.u.User != nil {
		name = x.u.User.Username()
		password, _ := x.u.User.Password()
		id = zk.DigestACL(zk.PermAll, name, password)[0].ID
	}
	var has int32
	for _, a := range acl {
		switch {
		case a.Scheme == "world":
		case a.Scheme == "digest" && name != "" && (a.ID == id || a.ID == name+":x"):
			// ":x" stands for a digest that only an administrator sees.
		case a.Scheme == "ip": // our address, as the servers see it, is not known
		default:
			continue
		}
		has |= a.Perms
	}
	return has&need == need
}

// zooName is a text as one element of a path, as the driver writes it.
func zooName(text string) string {
	if text == "" {
		return "%"
	}
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("-_:=+@,~", c) >= 0 || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
