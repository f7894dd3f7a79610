package rights

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/servers"
)

// silent is a logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
	c, events, err := zk.Connect(z.Addrs(), 10*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range events {
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })

	lines := commands(t, "# ZooKeeper, in zkCli.sh")
	if len(lines) != 2 || lines[0] != "addauth digest app:PASSWORD" {
		t.Fatalf("got %q, want addauth and create", lines)
	}
	rights, ok := strings.CutPrefix(lines[1], `create /locks "" auth:app:PASSWORD:`)
	if !ok {
		t.Fatalf("got %q, want create /locks", lines[1])
	}
	must(t, c.AddAuth("digest", []byte("app:p")))
	letters := map[rune]int32{
		'c': zk.PermCreate, 'd': zk.PermDelete, 'r': zk.PermRead, 'w': zk.PermWrite,
		'a': zk.PermAdmin,
	}
	node := func(path, rights string) string {
		var perms int32
		for _, r := range rights {
			perms |= letters[r]
		}
		_, err := c.Create(path, nil, 0, []zk.ACL{{Perms: perms, Scheme: "auth", ID: ""}})
		must(t, err)
		return "zookeeper://app:p@" + z.Addrs()[0] + path
	}
	all := node("/locks", rights)
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		works(t, all, locking, moving)
	})
	for _, right := range rights {
		url := node("/without-"+string(right), strings.ReplaceAll(rights, string(right), ""))
		t.Run("without "+string(right), func(t *testing.T) {
			t.Parallel()
			refused(t, url, locking, moving)
		})
	}
	t.Run("another user", func(t *testing.T) {
		t.Parallel()
		refused(t, strings.Replace(node("/other", rights), "app:p@", "other:p@", 1), locking)
	})
}
