package stores

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// resp is a connection in Redis's protocol (RESP2), for readiness checks and set-up only: it never retries and never
// reconnects, so it blurs nothing.
type resp struct {
	conn net.Conn
	r    *bufio.Reader
}

// dialRESP connects and, with a password, logs in. The connection's deadline is that of ctx.
func dialRESP(ctx context.Context, addr, password string, config *tls.Config) (*resp, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if config != nil {
		conn = tls.Client(conn, config)
	}
	c := &resp{conn: conn, r: bufio.NewReader(conn)}
	if password == "" {
		return c, nil
	}
	if _, err := c.do("AUTH", password); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *resp) close() { c.conn.Close() }

// do sends one command and returns its reply: string, int64, []any or nil. An error reply is an error.
func (c *resp) do(args ...string) (any, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		return nil, err
	}
	return c.reply()
}

// text sends one command whose reply is a string.
func (c *resp) text(args ...string) (string, error) {
	v, err := c.do(args...)
	if err != nil {
		return "", err
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s: reply %v is not a string", args[0], v)
	}
	return s, nil
}

func (c *resp) reply() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("empty line instead of a reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, errors.New(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("reply %q: %w", line, err)
	}
	switch {
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = c.reply(); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("reply %q is not RESP2", line)
}
