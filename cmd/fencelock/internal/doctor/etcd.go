package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/release"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// etcdAnswer is a member that has answered.
type etcdAnswer struct {
	where string
	*clientv3.StatusResponse
}

// etcd examines a cluster: the members in the URL, and the members that they name.
func (x *exam) etcd(ctx context.Context) error {
	conf, err := x.etcdConfig()
	if err != nil {
		return err
	}
	client, err := clientv3.New(conf)
	if err != nil {
		return etcdMeaning(err)
	}
	defer client.Close()
	answers, err := x.etcdAsk(ctx, client)
	var members []etcdAnswer
	if err == nil && len(client.Endpoints()) > 0 {
		members, err = x.etcdMembers(ctx, client, answers)
	}
	if errors.Is(err, rpctypes.ErrUserEmpty) {
		x.add("etcd-rights", "", "authentication is on, and the URL has no user")
		return nil
	}
	if err != nil {
		return etcdMeaning(err)
	}
	answers = append(answers, members...)
	x.etcdStates(answers)
	for _, a := range answers {
		x.etcdHTTP(ctx, a.where, conf.TLS)
	}
	if len(client.Endpoints()) == 0 {
		return nil // learners answer nothing more
	}
	return x.etcdRights(ctx, client, answers)
}

// etcdAsk asks the hosts of the URL, and makes the client use the voters among them. If no host answers, it
// returns the error of the last one.
func (x *exam) etcdAsk(ctx context.Context, c *clientv3.Client) (answers []etcdAnswer, err error) {
	var voters []string
	for _, host := range backend.Hosts(x.u, "2379") {
		st, silent := x.etcdStatus(ctx, c, host)
		if silent != nil {
			err = silent
			continue
		}
		x.saw(host)
		answers = append(answers, etcdAnswer{host, st})
		if st.IsLearner {
			x.add("etcd-learner-url", host, "yes")
			continue
		}
		voters = append(voters, x.etcdScheme()+host)
	}
	if len(answers) == 0 {
		return nil, err
	}
	c.SetEndpoints(voters...)
	return answers, nil
}

func (x *exam) etcdConfig() (clientv3.Config, error) {
	conf := clientv3.Config{Logger: zap.NewNop(), DialTimeout: askMost, MaxUnaryRetries: 1}
	var err error
	if conf.TLS, err = tlsurl.Config(x.u.Scheme == "etcds", x.q, "use etcds://"); err != nil {
		return conf, err
	}
	for _, host := range backend.Hosts(x.u, "2379") {
		conf.Endpoints = append(conf.Endpoints, x.etcdScheme()+host)
	}
	if x.u.User != nil {
		conf.Username = x.u.User.Username()
		conf.Password, _ = x.u.User.Password()
	}
	return conf, nil
}

func (x *exam) etcdScheme() string {
	if x.u.Scheme == "etcds" {
		return "https://"
	}
	return "http://"
}

// etcdStatus asks one member about itself.
func (x *exam) etcdStatus(
	ctx context.Context, c *clientv3.Client, host string,
) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	return c.Status(ctx, x.etcdScheme()+host)
}

// etcdMembers checks the members of the cluster, and returns the answers of the members that the URL does
// not name.
func (x *exam) etcdMembers(
	ctx context.Context, c *clientv3.Client, known []etcdAnswer,
) ([]etcdAnswer, error) {
	limited, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	list, err := c.MemberList(limited, clientv3.WithSerializable()) // works without a leader
	if err != nil {
		return nil, err
	}
	voters := 0
	var more []etcdAnswer
	for _, m := range list.Members {
		name := fmt.Sprintf("%x", m.ID)
		if m.IsLearner {
			x.add("etcd-learner", "", name)
		} else {
			voters++
		}
		asked := func(a etcdAnswer) bool { return a.Header.MemberId == m.ID }
		if slices.ContainsFunc(known, asked) {
			continue
		}
		st, where := x.etcdMember(ctx, c, m)
		if st == nil {
			x.add("etcd-member-down", where, strings.TrimSpace(m.Name+" "+name))
			continue
		}
		x.saw(where)
		more = append(more, etcdAnswer{where, st})
	}
	switch {
	case voters < 3:
		x.add("etcd-members", "", fmt.Sprint(voters))
	case voters%2 == 0:
		x.add("etcd-even", "", fmt.Sprint(voters))
	}
	return more, nil
}

// etcdMember asks a member that the URL does not name at the addresses that it announces.
func (x *exam) etcdMember(
	ctx context.Context, c *clientv3.Client, m *etcdserverpb.Member,
) (st *clientv3.StatusResponse, where string) {
	for _, raw := range m.ClientURLs {
		u, err := url.Parse(raw)
		if err != nil {
			continue
		}
		where = u.Host
		if st, err := x.etcdStatus(ctx, c, u.Host); err == nil {
			return st, where
		}
	}
	return nil, where
}

// etcdStates checks the members' answers about themselves.
func (x *exam) etcdStates(answers []etcdAnswer) {
	versions, alarms := map[string]bool{}, map[string]bool{}
	led := false
	for _, a := range answers {
		led = led || a.Leader != 0
		versions[a.Version] = true
		least := "etcd"
		if strings.HasPrefix(a.Version, "3.5.") {
			least = "etcd-3.5"
		}
		if release.Older(a.Version, x.least[least]) {
			x.add("etcd-version", a.where, a.Version)
		}
		for _, e := range a.Errors {
			for _, alarm := range []string{"NOSPACE", "CORRUPT"} {
				if strings.Contains(e, alarm) {
					alarms[alarm] = true
				}
			}
		}
		if quota := a.DbSizeQuota; quota > 0 && float64(a.DbSize) > crowded*float64(quota) {
			x.add("etcd-quota", a.where, fmt.Sprintf("%d of %d bytes", a.DbSize, quota))
		}
	}
	if !led {
		x.add("etcd-no-leader", "", "none")
	}
	for _, alarm := range []string{"NOSPACE", "CORRUPT"} {
		if alarms[alarm] {
			x.add("etcd-alarm", "", alarm)
		}
	}
	if len(versions) > 1 {
		all := slices.SortedFunc(maps.Keys(versions), func(a, b string) int {
			return cmp.Or(slices.Compare(release.Numbers(a), release.Numbers(b)), cmp.Compare(a, b))
		})
		x.add("etcd-versions", "", strings.Join(all, ", "))
	}
}

// etcdRights checks that the user may read and write the keys of the prefix. It tries to read, and looks
// the right to write up in the user's roles.
func (x *exam) etcdRights(ctx context.Context, c *clientv3.Client, answers []etcdAnswer) error {
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	from := strings.ReplaceAll(x.prefix, "~", "~~")
	_, err := c.Get(ctx, from,
		clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithSerializable())
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		x.add("etcd-rights", "", "reading is refused")
		return nil
	case err != nil:
		return etcdMeaning(err)
	case !slices.ContainsFunc(answers, func(a etcdAnswer) bool { return a.Leader != 0 }):
		return nil // nothing more is answered without one
	case c.Username == "" && x.keys.Get("tls_cert") == "":
		return nil // it can read without a user: authentication is off
	}
	if st, err := c.AuthStatus(ctx); err == nil && !st.Enabled {
		return nil
	}
	if c.Username == "" {
		x.add("etcd-rights-unseen", "", "the user is that of a certificate")
		return nil
	}
	user, err := c.UserGet(ctx, c.Username)
	if err != nil {
		x.add("etcd-rights-unseen", "", "the user's roles")
		return nil
	}
	var spans []span
	for _, name := range user.Roles {
		if name == "root" {
			return nil
		}
		role, err := c.RoleGet(ctx, name)
		if err != nil {
			x.add("etcd-rights-unseen", "", "the role "+name)
			return nil
		}
		for _, p := range role.Perm {
			if p.PermType == clientv3.PermReadWrite || p.PermType == clientv3.PermWrite {
				spans = append(spans, span{string(p.Key), string(p.RangeEnd)})
			}
		}
	}
	if !covers(spans, span{cmp.Or(from, "\x00"), clientv3.GetPrefixRangeEnd(from)}) {
		x.add("etcd-rights", "", fmt.Sprintf("no role may write all keys from %q", from))
	}
	return nil
}

// span is a range of keys: from, and up to but without end. With an empty end it is the single key, with
// "\x00" all keys from there on.
type span struct{ from, end string }

// covers reports whether the spans together have all keys of want.
func covers(spans []span, want span) bool {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	at := want.from
	for _, s := range spans {
		switch end := s.end; {
		case s.from > at, end == "":
		case end == "\x00":
			return true
		case end > at:
			at = end
		}
		if want.end != "\x00" && at >= want.end {
			return true
		}
	}
	return false
}

// etcdMeaning returns an error with the sentinel that the exit code needs: an error that another try cannot
// mend becomes ErrInvalid.
func etcdMeaning(err error) error {
	for _, refused := range []error{
		rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrPermissionDenied,
		rpctypes.ErrAuthNotEnabled,
	} {
		if errors.Is(err, refused) {
			return backend.Invalid("the etcd server refuses the user or password: %v", refused)
		}
	}
	return err
}

const (
	// electionMost is the longest election timeout with which a dead waiter delays others by at
	// most 5 s.
	electionMost = 2000
	// txnLeast is how many operations a transaction must be able to have.
	txnLeast = 128
	// dateStep is the step of the Date header.
	dateStep = time.Second
)

// etcdHTTP asks a member for the time and for its command line, which gRPC does not tell.
func (x *exam) etcdHTTP(ctx context.Context, where string, secure *tls.Config) {
	transport := &http.Transport{TLSClientConfig: secure.Clone()}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(ctx context.Context, path string) (*http.Response, []byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, x.etcdScheme()+where+path, nil)
		if err != nil {
			return nil, nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return resp, body, err
	}
	s, err := x.sample(ctx, func(ctx context.Context) (time.Time, error) {
		resp, _, err := get(ctx, "/version")
		if err != nil {
			return time.Time{}, err
		}
		date, err := http.ParseTime(resp.Header.Get("Date"))
		return date.Add(dateStep / 2), err // it is rounded down
	})
	if err != nil {
		x.add("etcd-clock-unseen", where, "no answer")
	} else {
		x.judge(where, s, dateStep/2)
	}
	limited, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	var vars struct {
		Line []string `json:"cmdline"`
	}
	_, body, err := get(limited, "/debug/vars")
	if err == nil {
		err = json.Unmarshal(body, &vars)
	}
	if err != nil || len(vars.Line) == 0 {
		x.add("etcd-settings-unseen", where, "no answer")
		return
	}
	x.etcdFlags(where, vars.Line)
}

// etcdFlags checks a member's command line. It cannot see the settings of a file or of the environment.
func (x *exam) etcdFlags(where string, line []string) {
	if argument(line, "config-file") != "" {
		x.add("etcd-settings-unseen", where, "it has a --config-file")
		return
	}
	ms, err := strconv.Atoi(argument(line, "election-timeout"))
	if err == nil && ms > electionMost {
		x.add("etcd-election", where, strconv.Itoa(ms)+" ms")
	}
	if n, err := strconv.Atoi(argument(line, "max-txn-ops")); err == nil && n < txnLeast {
		x.add("etcd-txn-ops", where, strconv.Itoa(n))
	}
	if v := argument(line, "auto-compaction-retention"); v == "" || v == "0" {
		x.add("etcd-compaction", where, "not on the command line")
	}
}

// argument returns the value of a flag of a command line; empty if it is not there.
func argument(line []string, name string) string {
	for i, arg := range line {
		arg, dashed := strings.CutPrefix(strings.Replace(arg, "--", "-", 1), "-")
		key, value, whole := strings.Cut(arg, "=")
		switch {
		case !dashed || key != name:
		case whole:
			return value
		case i+1 < len(line):
			return line[i+1]
		}
	}
	return ""
}
