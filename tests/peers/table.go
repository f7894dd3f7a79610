package peers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
)

// A Question is one rule, as a user would ask about it.
type Question struct {
	Name, Asks string
	Unsafe     bool // a no means that two have the lock
}

// Questions are the rows of the table.
var Questions = []Question{
	{"lost-grant", "A reply is lost while a free lock is taken. Is the lock held, or free again at once?", false},
	{"ended-acquire", "The caller's ctx ends while a reply is under way. Is the lock free at once?", false},
	{"ended-wait", "A waiter's ctx ends. Does it return, and leave nothing that keeps others out?", false},
	{"hang-asking", "The server hangs. Does Lock return when its ctx ends?", false},
	{"hang-waiting", "The server hangs while a waiter waits. Does Lock return when its ctx ends?", false},
	{"first-come", "Are waiters served in the order in which they came?", false},
	{"dead-waiter", "A waiter dies. Does the next have the lock within 5 s of its release?", false},
	{"slow-link", "Round trips take a twentieth of the lease. Is a renewed lock still held?", false},
	{"told-first", "The holder is cut off in silence. Is it told before another has the lock?", true},
	{"told-broken", "The lock is taken away in the store. Is the holder told within 3 s?", false},
	{"token", "Does a lock have a number that rises, also over a restart of the server?", true},
	{"zombie", "A holder that was overtaken goes on. Can a resource refuse its write?", true},
	{"late-unlock", "A holder whose lock has passed to another unlocks. Does the other keep the lock?", true},
	{"unlock-again", "The reply to Unlock is lost, the lock taken again, Unlock retried. Is it still held?", true},
	{"ended-unlock", "Unlock with a ctx that has ended: is the lock free?", false},
	{"relock", "After a loss, can the same object lock again?", false},
}

// The states of a cell.
const (
	Kept       = "kept"
	Broken     = "broken"
	NotOffered = "not offered" // the API cannot be asked, or its documents promise nothing
	LeftOut    = "left out"    // what is seen differs from run to run
)

// A Promise is what a library says of itself, or what every lock has to do, where it was seen not to.
type Promise struct{ Says, Issue string }

const github = "https://github.com/"

// Promises are by question/library. What is not kept and not here is not offered.
var Promises = map[string]Promise{
	"lost-grant/redsync": {
		"`ErrTaken` \"happens when the lock is already taken in a quorum on nodes\". " +
			"go-redis sends `SET NX` again, which then answers that the key is there.",
		github + "redis/go-redis/issues/2985",
	},
	"lost-grant/rueidislock": {
		"README: \"If the KeyMajority is satisfied within the KeyValidity duration, the invocation is " +
			"successful\". The script is sent again and meets its own key, which stays for its KeyValidity.", "",
	},
	"lost-grant/go-zookeeper": {
		"`Lock`: \"It will wait to return until the lock is acquired or an error occurs\". After the error " +
			"its node stays: as long as the session lives, no Lock returns any more.",
		github + "samuel/go-zookeeper/issues/229",
	},
	"ended-acquire/etcd-concurrency": {
		"`Mutex.Lock`: \"If the context is canceled while trying to acquire the lock, the mutex tries to " +
			"clean its stale lock entry\". The entry stays as long as the session lives.", "",
	},
	"hang-waiting/etcd-concurrency": {
		"`Mutex.Lock` \"locks the mutex with a cancelable context\". The clean-up after the wait has no deadline.", "",
	},
	"told-first/rueidislock": {
		"README: \"The returned ctx will be canceled automatically and immediately once the KeyMajority is " +
			"not held anymore, for example: Redis are down\". The timer waits for the renewal that is under way.", "",
	},
	"unlock-again/etcd-concurrency": {
		"`Mutex` \"implements the sync Locker interface\": who does not hold it cannot unlock it. " +
			"A key is named for its session and deleted by that name.",
		github + "etcd-io/etcd/issues/22082",
	},
	"relock/go-zookeeper": {
		"`Lock`: \"If this instance already has the lock then ErrDeadlock is returned\". It has lost it.", "",
	},
	"told-first/twin-of-consul-18271": {
		"The monitor of a lock reads without a deadline, and the renewals' errors are only logged.",
		github + "hashicorp/consul/issues/18271",
	},
	"dead-waiter/twin-of-redisson-3730": {
		"The place of a dead waiter stays in the queue for its wait time, and nobody else is served.",
		github + "redisson/redisson/issues/3730",
	},
	"zombie/twin-of-juicefs-7462": {
		"A frozen client goes on after its locks were given to another, and writes.",
		github + "juicedata/juicefs/issues/7462",
	},
	"slow-link/twin-of-rueidis-923": {
		"A renewal counts from the last deadline and not from now. rueidislock has mended it " +
			"([924](" + github + "redis/rueidis/pull/924)), and keeps the lock here.",
		github + "redis/rueidis/issues/923",
	},
}

// Racy are the cells that are left out, and why.
var Racy = map[string]string{
	"told-first/etcd-concurrency": "`Session.Done` closes before another has the lock in some runs and " +
		"up to 0.8 s after it in others, as the ticks of client and server fall " +
		"([etcd#10811](" + github + "etcd-io/etcd/issues/10811)).",
}

// A Found is the answer to a question.
type Found struct {
	Question string `json:"question"`
	Library  string `json:"library"`
	State    string `json:"state"`
	Seen     string `json:"seen"` // when it was recorded
}

// Cell names it as tests do.
func (f Found) Cell() string { return f.Question + "/" + f.Library }

// Results are the recorded answers.
type Results struct {
	Servers map[string]string `json:"servers"` // versions
	Found   []Found           `json:"found"`
}

// Load reads a file of them. There is nothing in one that is not there.
func Load(path string) (Results, error) {
	r := Results{Servers: map[string]string{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	return r, err
}

// Of returns the answer of a cell.
func (r Results) Of(cell string) (Found, bool) {
	i := slices.IndexFunc(r.Found, func(f Found) bool { return f.Cell() == cell })
	if i < 0 {
		return Found{}, false
	}
	return r.Found[i], true
}

// Record writes answers into a file, in the place of its answers of the same cells.
func Record(path string, now Results) error {
	all, err := Load(path)
	if err != nil {
		return err
	}
	for store, version := range now.Servers {
		all.Servers[store] = version
	}
	all.Found = slices.DeleteFunc(all.Found, func(f Found) bool {
		_, again := now.Of(f.Cell())
		return again
	})
	all.Found = append(all.Found, now.Found...)
	slices.SortFunc(all.Found, func(a, b Found) int {
		return cmp.Or(cmp.Compare(row(a.Question), row(b.Question)), cmp.Compare(a.Library, b.Library))
	})
	raw, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

func row(question string) int {
	return slices.IndexFunc(Questions, func(q Question) bool { return q.Name == question })
}

// A Column is a library, for the document.
type Column struct{ Name, Module, Settings string }

func (c Column) twin() bool { return strings.HasPrefix(c.Name, "twin-of-") }

// RenderTable makes the table of questions and libraries.
func RenderTable(r Results, columns []Column) string {
	var b strings.Builder
	b.WriteString("| question |")
	columns = slices.DeleteFunc(slices.Clone(columns), Column.twin)
	for _, c := range columns {
		b.WriteString(" " + strings.ReplaceAll(c.Name, "fencelock-", "Fencelock ") + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, q := range Questions {
		fmt.Fprintf(&b, "| **%s**: %s |", q.Name, q.Asks)
		for _, c := range columns {
			f, ok := r.Of(q.Name + "/" + c.Name)
			switch {
			case Racy[q.Name+"/"+c.Name] != "":
				b.WriteString(" " + LeftOut + " |")
			case !ok:
				b.WriteString(" not run |")
			case f.State == Broken:
				b.WriteString(" **broken** |")
			case f.State == NotOffered:
				b.WriteString(" – |")
			default:
				b.WriteString(" " + f.State + " |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// RenderBroken lists the red cells, each with the command that shows it.
func RenderBroken(r Results, twins bool) string {
	var b strings.Builder
	for _, f := range r.Found {
		if f.State != Broken || strings.HasPrefix(f.Library, "twin-of-") != twins {
			continue
		}
		p := Promises[f.Cell()]
		fmt.Fprintf(&b, "- **%s**, %s. %s", f.Library, f.Question, p.Says)
		if p.Issue != "" {
			fmt.Fprintf(&b, " [%s](%s)", label(p.Issue), p.Issue)
		}
		fmt.Fprintf(&b, "\n  Seen: %s.\n  `%s`\n", f.Seen, Command(f.Cell()))
	}
	return b.String()
}

// Command shows a cell.
func Command(cell string) string {
	return "go test -count=1 -v -run 'TestPeers/" + cell + "' ./tests/peers"
}

var issue = regexp.MustCompile(`github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)`)

// label is a link's text.
func label(link string) string {
	m := issue.FindStringSubmatch(link)
	if m == nil {
		return link
	}
	return m[1] + "#" + m[2]
}

// RenderNot lists why cells are not offered. Libraries of one reason stand together.
func RenderNot(r Results) string {
	var b strings.Builder
	for _, q := range Questions {
		var reasons []string
		of := map[string][]string{}
		for _, f := range r.Found {
			if f.Question == q.Name && f.State == NotOffered {
				if of[f.Seen] == nil {
					reasons = append(reasons, f.Seen)
				}
				of[f.Seen] = append(of[f.Seen], f.Library)
			}
		}
		for _, why := range reasons {
			fmt.Fprintf(&b, "- %s, %s: %s.\n", q.Name, strings.Join(of[why], ", "), why)
		}
	}
	return b.String()
}

// RenderRacy lists the cells that are left out.
func RenderRacy() string {
	var b strings.Builder
	for _, q := range Questions {
		for cell, why := range Racy {
			if strings.HasPrefix(cell, q.Name+"/") {
				fmt.Fprintf(&b, "- %s: %s\n", cell, why)
			}
		}
	}
	return b.String()
}

// RenderRan lists the versions that ran, and the libraries' settings.
func RenderRan(r Results, columns []Column, gomod string) string {
	var b strings.Builder
	b.WriteString("| library | module | settings |\n|---|---|---|\n")
	for _, c := range columns {
		if c.twin() || strings.HasPrefix(c.Name, "fencelock-") {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, required(gomod, c.Module), c.Settings)
	}
	fmt.Fprintf(&b, "\nThe clients beneath them: %s, %s. The servers:", required(gomod, "github.com/redis/go-redis/v9"),
		required(gomod, "github.com/jackc/pgx/v5"))
	for i, store := range []string{"redis", "etcd", "zookeeper", "postgres"} {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, " %s %s", store, r.Servers[store])
	}
	b.WriteString(".\n")
	return b.String()
}

// required is a module that go.mod requires, or the one that a package of it is in, with its version.
func required(gomod, path string) string {
	best := ""
	for line := range strings.Lines(gomod) {
		f := strings.Fields(line)
		if len(f) >= 2 && strings.HasPrefix(path+"/", f[0]+"/") && len(f[0]) > len(best) {
			best = f[0] + " " + f[1]
		}
	}
	return cmp.Or(best, path)
}
