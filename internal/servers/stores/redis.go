package stores

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// RedisOptions describes one Redis server. The zero value is a server without a password that keeps nothing on disk.
type RedisOptions struct {
	// Config holds lines of redis.conf, such as "appendonly yes". They come last and so win.
	Config []string
	// Password is required of clients (requirepass) and part of the URL.
	Password string
	// Users are rules of ACL users, such as "worker on >secret ~fencelock:* +@all".
	Users []string
	// TLS makes the server speak TLS only, with a certificate of an authority of its own (CAFile, TLSConfig).
	TLS bool
}

// StartRedis starts one Redis server. The caller closes it.
func StartRedis(ctx context.Context, l Launcher, o RedisOptions) (*Server, error) {
	g, err := StartRedises(ctx, l, 1, o)
	if err != nil {
		return nil, err
	}
	return g.servers[0], nil
}

// StartRedises starts n servers that know nothing of each other, as Redlock needs them.
func StartRedises(ctx context.Context, l Launcher, n int, o RedisOptions) (*Group, error) {
	return startGroup(ctx, n, false, func(port int) (*Server, error) { return prepareRedis(ctx, l, port, o) })
}

// prepareRedis writes the configuration of a server on a port.
func prepareRedis(ctx context.Context, l Launcher, port int, o RedisOptions) (*Server, error) {
	return newServer("redis", l, port, func(s *Server) error { return s.prepareRedis(ctx, l, port, o) })
}

func (s *Server) prepareRedis(ctx context.Context, l Launcher, port int, o RedisOptions) error {
	data := filepath.Join(s.dir, "data")
	lines := []string{
		"bind 127.0.0.1", "protected-mode no", "daemonize no", `save ""`,
		"repl-diskless-sync-delay 0", "dir " + data,
	}
	u := url.URL{Scheme: "redis", Host: s.addr, Path: "/0"}
	if o.TLS {
		a, err := newAuthority(s.dir)
		if err != nil {
			return err
		}
		s.caFile, s.tls = a.caFile, a.client
		u.Scheme = "rediss"
		lines = append(lines, "port 0", "tls-port "+strconv.Itoa(port), "tls-auth-clients no",
			"tls-ca-cert-file "+a.caFile, "tls-cert-file "+a.certFile, "tls-key-file "+a.keyFile)
	} else {
		lines = append(lines, "port "+strconv.Itoa(port))
	}
	if o.Password != "" {
		u.User = url.UserPassword("", o.Password)
		lines = append(lines, "requirepass "+strconv.Quote(o.Password), "masterauth "+strconv.Quote(o.Password))
	}
	for _, user := range o.Users {
		lines = append(lines, "user "+user)
	}
	s.url = u.String()
	return s.prepareRESP(ctx, l, "redis-server", append(lines, o.Config...), o.Password)
}

// prepareRESP writes redis.conf and makes the process of a server or a sentinel.
func (s *Server) prepareRESP(
	ctx context.Context, l Launcher, name string, lines []string, password string, flags ...string,
) error {
	conf, data := filepath.Join(s.dir, "redis.conf"), filepath.Join(s.dir, "data")
	if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	port, err := strconv.Atoi(portOf(s.addr))
	if err != nil {
		return err
	}
	s.process, err = l.Prepare(ctx, Spec{
		Store: s.store, Name: name, Dir: s.dir, Data: data, Ports: []int{port},
		Args: append([]string{"redis-server", conf}, flags...),
	})
	s.ready = func(ctx context.Context) error {
		pong, err := s.ask(ctx, password, "PING")
		if err == nil && pong != "PONG" {
			err = fmt.Errorf("reply to PING is %q", pong)
		}
		return err
	}
	s.probe = func(ctx context.Context) (string, error) {
		info, err := s.ask(ctx, password, "INFO", "server")
		if v := field(info, "valkey_version"); v != "" {
			return v, err // the other is that of the Redis whose commands it has
		}
		return field(info, "redis_version"), err
	}
	return err
}

// ask sends one command over a connection of its own and returns its text.
func (s *Server) ask(ctx context.Context, password string, args ...string) (string, error) {
	c, err := dialRESP(ctx, s.addr, password, s.tls)
	if err != nil {
		return "", err
	}
	defer c.close()
	return c.text(args...)
}

// field returns a value of INFO's "name:value" lines.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
