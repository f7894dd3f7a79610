package redlock

import (
	"bytes"
	"fmt"
	"strconv"
)

// What a line needs of RESP 2, https://redis.io/docs/latest/develop/reference/protocol-spec/: commands, and the replies of our
// functions. All else is a reply that go-redis is to get.

// encode appends a call of our function.
func encode(b []byte, keys []string, args []any) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(3+len(keys)+len(args)), 10)
	b = append(b, "\r\n$5\r\nFCALL\r\n"...)
	b = encodeString(b, library)
	b = encodeString(b, strconv.Itoa(len(keys)))
	for _, k := range keys {
		b = encodeString(b, k)
	}
	for _, a := range args {
		switch a := a.(type) {
		case string:
			b = encodeString(b, a)
		case int64:
			b = encodeString(b, strconv.FormatInt(a, 10))
		default:
			b = encodeString(b, fmt.Sprint(a))
		}
	}
	return b
}

func encodeString(b []byte, s string) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, '\r', '\n')
	b = append(b, s...)
	return append(b, '\r', '\n')
}

// other stands for a reply that is an error, or none of ours.
type other struct{}

// decode reads the reply at the beginning of b, as go-redis would, and how long it is: 0 if the rest of it is still to come.
func decode(b []byte) (reply any, size int) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 1 {
		return nil, 0
	}
	line, size := string(b[1:end]), end+2
	n, err := strconv.ParseInt(line, 10, 64)
	switch {
	case err != nil:
		return other{}, size
	case b[0] == ':':
		return n, size
	case b[0] == '$' && n >= 0:
		if int64(len(b)) < int64(size)+n+2 {
			return nil, 0
		}
		return string(b[size : size+int(n)]), size + int(n) + 2
	case b[0] == '*' && n >= 0:
		var all []any
		for range n {
			one, length := decode(b[size:])
			if length == 0 {
				return nil, 0
			}
			all = append(all, one)
			size += length
		}
		return all, size
	case b[0] == '$' || b[0] == '*':
		return nil, size
	}
	return other{}, size
}
