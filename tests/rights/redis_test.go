package rights

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/servers"
)

// rules are the words of the ACL SETUSER line behind the user's name, for the user and its own
// prefix, and its password p.
func rules(t *testing.T, first, user string) []string {
	t.Helper()
	var words []string
	for _, line := range commands(t, first) {
		words = append(words, strings.Fields(strings.TrimSuffix(line, "\\"))...)
	}
	if len(words) < 5 || !slices.Equal(words[:3], []string{"ACL", "SETUSER", "app"}) {
		t.Fatalf("got %q, want ACL SETUSER app", words)
	}
	words = words[3:]
	for i, w := range words {
		words[i] = strings.Replace(strings.Replace(w, ">PASSWORD", ">p", 1), "~fencelock:", "~"+user+":", 1)
	}
	return words
}

// single are the rights among the rules, each of which is taken away alone.
func single(rules []string) []string {
	return slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return !strings.ContainsAny(r[:1], "~&+") })
}

// setUser makes the user on every node.
func setUser(t *testing.T, nodes []*goredis.Client, user string, rules []string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", user, "reset"}
	for _, r := range rules {
		args = append(args, r)
	}
	for _, n := range nodes {
		must(t, n.Do(t.Context(), args...).Err())
	}
}

func clients(t *testing.T, addrs ...string) []*goredis.Client {
	t.Helper()
	var cs []*goredis.Client
	for _, a := range addrs {
		c := goredis.NewClient(&goredis.Options{Addr: a})
		t.Cleanup(func() { _ = c.Close() })
		cs = append(cs, c)
	}
	return cs
}

func testRedis(t *testing.T, scheme, query, first string, addrs []string, unneeded map[string]string) {
	t.Helper()
	nodes := clients(t, addrs...)
	url := func(user string) string {
		return fmt.Sprintf("%s://%s:p@%s?prefix=%s:%s", scheme, user, strings.Join(addrs, ","), user, query)
	}
	t.Run("all", func(t *testing.T) {
		setUser(t, nodes, "all", rules(t, first, "all"))
		works(t, url("all"), locking, moving)
	})
	for i, right := range single(rules(t, first, "x")) {
		user := fmt.Sprintf("user%d", i)
		t.Run("without "+strings.Replace(right, "~x:", "~fencelock:", 1), func(t *testing.T) {
			if scheme == "redis" && right == "+eval" { // what another has sent as text needs no text again
				for _, n := range nodes {
					must(t, n.ScriptFlush(t.Context()).Err())
				}
			} else {
				t.Parallel()
			}
			rest := rules(t, first, user)
			right := strings.Replace(right, "~x:", "~"+user+":", 1)
			rest = slices.DeleteFunc(rest, func(r string) bool { return r == right })
			setUser(t, nodes, user, rest)
			if unneeded[right] != "" {
				works(t, url(user), locking, moving)
				return
			}
			refused(t, url(user), locking, moving, remembering)
		})
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	testRedis(t, "redis", "", "# Redis", []string{s.Addr()}, map[string]string{
		"+pubsub": "pushes are counted by PUBLISH then",
		"+type":   "it is asked for where a key holds no string",
		"+hlen":   "it is asked for where a key holds a hash",
		"+hkeys":  "it is asked for where a key holds a hash",
	})
	t.Run("another database, and a client's name", func(t *testing.T) {
		setUser(t, clients(t, s.Addr()), "more", append(rules(t, "# Redis", "more"), "+select", "+client|setname"))
		works(t, fmt.Sprintf("redis://more:p@%s/1?client_name=n&prefix=more:", s.Addr()), locking, moving)
	})
}

func TestRedlock(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 3, servers.RedisOptions{})
	testRedis(t, "redlock", "&fresh=1", "# each node of Redlock", g.Addrs(), map[string]string{
		"+subscribe":     "waiters look by themselves, later",
		"+function|load": "whoever is first loads the functions, which stay",
		"+mget":          "many votes at once are then read one by one",
		"+ltrim":         "it is asked for once a node remembers 160 releases",
	})
}

// Nodes that know no functions are sent scripts.
func TestRedlockOfRedis6(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 3, servers.RedisOptions{})
	words := strings.Split(
		strings.ReplaceAll(strings.Join(rules(t, "# each node of Redlock", "old"), " "),
			"+fcall +function|load", "+eval +evalsha"), " ")
	setUser(t, clients(t, g.Addrs()...), "old", words)
	works(t, "redlock://old:p@"+strings.Join(g.Addrs(), ",")+"?fresh=1&prefix=old:", locking, moving)
}
