package rights

import (
	"context"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/internal/servers"
)

// etcdctl does what the line says, for the user and its role, and the password p.
func etcdctl(ctx context.Context, c *clientv3.Client, line, user string) error {
	w := strings.Fields(strings.NewReplacer("locks", "role-"+user, "app", user, "PASSWORD", "p",
		"fencelock:", user+":").Replace(line))
	var err error
	switch verb := strings.Join(w[1:3], " "); {
	case verb == "role add" && len(w) == 4:
		_, err = c.RoleAdd(ctx, w[3])
	case verb == "role grant-permission" && len(w) == 7 && w[3] == "--prefix=true":
		kinds := map[string]clientv3.PermissionType{
			"read":      clientv3.PermissionType(clientv3.PermRead),
			"write":     clientv3.PermissionType(clientv3.PermWrite),
			"readwrite": clientv3.PermissionType(clientv3.PermReadWrite),
		}
		_, err = c.RoleGrantPermission(ctx, w[4], w[6], clientv3.GetPrefixRangeEnd(w[6]), kinds[w[5]])
	case verb == "user add" && len(w) == 4:
		name, password, _ := strings.Cut(w[3], ":")
		_, err = c.UserAdd(ctx, name, password)
	case verb == "user grant-role" && len(w) == 5:
		_, err = c.UserGrantRole(ctx, w[3], w[4])
	default:
		err = fmt.Errorf("not understood: %s", line)
	}
	return err
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{Args: []string{"--bcrypt-cost=4"}}) // logins are cheap
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Addrs(), Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	lines := commands(t, "# etcd")
	tests := []struct{ name, user, old, new string }{
		{"all", "all", "", ""},
		{"without read", "writer", "readwrite", "write"},
		{"without write", "reader", "readwrite", "read"},
		{"without a part of the prefix", "part", "fencelock:", "fencelock:~lock/"},
		{"without the role", "bare", "user grant-role app locks", ""},
	}
	for _, tt := range tests {
		for _, line := range lines {
			if line = strings.Replace(line, tt.old, tt.new, 1); strings.TrimSpace(line) != "etcdctl" {
				must(t, etcdctl(t.Context(), c, line, tt.user))
			}
		}
	}
	for _, step := range []string{"user add root:p", "user grant-role root root"} {
		must(t, etcdctl(t.Context(), c, "etcdctl "+step, "root"))
	}
	_, err = c.AuthEnable(t.Context())
	must(t, err)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := "etcd://" + tt.user + ":p@" + e.Addrs()[0] + "?prefix=" + tt.user + ":"
			if tt.old == "" {
				works(t, url, locking, moving)
				return
			}
			refused(t, url, locking, moving)
		})
	}
}
