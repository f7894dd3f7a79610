package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// childEnv is set in the second process to the URL that it opens.
const childEnv = "FENCELOCK_CONFORMANCE_CHILD"

// Child turns this process into the second process of a rule if it was started as one: then it does
// not return but exits. A test binary calls it first thing in TestMain, a program first thing in
// main, if its Harness has a URL. The driver must be imported. busy is Harness.Busy, if there is
// one.
func Child(busy ...Busy) {
	url := os.Getenv(childEnv)
	if url == "" {
		return
	}
	err := serve(context.Background(), url, busy, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance: second process:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve obeys the commands on in, one a line, each on a goroutine of its own, and answers on out with
// "id ok …" or "id error …". Lines of the test runner may stand between.
func serve(ctx context.Context, url string, busy []Busy, in io.Reader, out io.Writer) error {
	l, err := fencelock.Open(ctx, url)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	c := &child{l: l, busy: busy, leases: map[string]*fencelock.Lease{}}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		go func() {
			var answer string
			err := stopped(func() error { answer = "ok " + c.obey(ctx, words[1], words[2:]); return nil })
			if err != nil {
				answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
			}
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "%s%s %s\n", answerMark, words[0], answer)
		}()
	}
	return l.Close()
}

// answerMark begins an answer's line.
const answerMark = "\n@conformance "

// child is the state of a second process.
type child struct {
	l      *fencelock.Locker
	busy   []Busy
	mu     sync.Mutex
	leases map[string]*fencelock.Lease
}

// obey does what it is told, or ends by check.
func (c *child) obey(ctx context.Context, verb string, args []string) (answer string) {
	switch verb {
	case "lock": // name TTL grace
		ttl, grace := must(time.ParseDuration(args[1])), must(time.ParseDuration(args[2]))
		le := must(c.l.Mutex(args[0], fencelock.WithTTL(ttl), fencelock.WithGrace(grace)).Lock(ctx))
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leases[args[0]] = le
		return strconv.FormatInt(le.Token(), 10)
	case "many": // n TTL: so many long names
		check(c.lockMany(ctx, must(strconv.Atoi(args[0])), must(time.ParseDuration(args[1]))))
	case "unlock": // name
		check(c.lease(args[0]).Unlock(ctx))
	case "err": // name: what the first look says
		if err := c.lease(args[0]).Err(); err != nil {
			return err.Error()
		}
		return "held"
	case "busy": // name key unread
		if len(c.busy) == 0 {
			check(errors.New("the program calls Child without Harness.Busy"))
		}
		check(c.busy[0].Begin(ctx, c.lease(args[0]), args[1], args[2] == "true"))
	case "add": // name file times: an unsynchronised counter under the lock
		for range must(strconv.Atoi(args[2])) {
			check(c.l.Do(ctx, args[0], func(context.Context, *fencelock.Lease) error { return addOne(args[1]) }))
		}
	case "churn": // n TTL name: locks and unlocks so many until the process ends; answers after the first round
		c.churn(ctx, must(strconv.Atoi(args[0])), must(time.ParseDuration(args[1])), args[2])
	case "exit":
		os.Exit(0)
	default:
		check(fmt.Errorf("unknown command %q", verb))
	}
	return ""
}

func (c *child) lease(name string) *fencelock.Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leases[name]
}

func (c *child) churn(ctx context.Context, n int, ttl time.Duration, name string) {
	first := make(chan struct{})
	for i := range n {
		m := c.l.Mutex(name+strconv.Itoa(i), fencelock.WithTTL(ttl))
		go func() {
			for round := 0; ; round++ {
				if le, err := m.Lock(ctx); err == nil { // on a busy machine some are lost
					_ = le.Unlock(ctx)
				}
				if round == 0 {
					first <- struct{}{}
				}
				time.Sleep(time.Millisecond) // the machine has other work
			}
		}()
	}
	for range n {
		<-first
	}
}

// addOne adds one to the number in a file, so slowly that two at once lose one.
func addOne(file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	n, _ := strconv.Atoi(string(text)) // an empty file is 0
	time.Sleep(time.Millisecond)       // the window in which an update gets lost
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// Process is a second process, seen from the first.
type Process struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when it has ended

	mu      sync.Mutex
	next    int
	answers map[string]chan string
}

// Process starts a second process on the same store.
func (e *Env) Process(ctx context.Context) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, "-test.run=^$") // in case a TestMain forgot Child
	cmd.Env = append(os.Environ(), childEnv+"="+e.h.URL(Client{Prefix: e.prefix}))
	cmd.Stderr = os.Stderr
	ownGroup(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, in: in, done: make(chan struct{}), answers: map[string]chan string{}}
	go p.read(out)
	e.onClose(func() error {
		_ = p.Continue()
		p.Kill()
		return nil
	})
	return p, nil
}

func (p *Process) read(out io.Reader) {
	mark := strings.TrimSpace(answerMark) + " "
	for lines := bufio.NewScanner(out); lines.Scan(); {
		id, answer, ok := strings.Cut(strings.TrimPrefix(lines.Text(), mark), " ")
		if !ok || !strings.HasPrefix(lines.Text(), mark) {
			continue
		}
		p.mu.Lock()
		ch := p.answers[id]
		delete(p.answers, id)
		p.mu.Unlock()
		if ch != nil {
			ch <- answer
		}
	}
	_ = p.cmd.Wait() // how it ended does not matter
	close(p.done)
}

// Send gives the process a command; its answer comes on the channel.
func (p *Process) Send(words ...string) <-chan string {
	p.mu.Lock()
	p.next++
	id := strconv.Itoa(p.next)
	ch := make(chan string, 1)
	p.answers[id] = ch
	p.mu.Unlock()
	if _, err := fmt.Fprintf(p.in, "%s %s\n", id, strings.Join(words, " ")); err != nil {
		ch <- "error " + err.Error()
	}
	return ch
}

// Ask gives the process a command and waits for its answer.
func (p *Process) Ask(ctx context.Context, words ...string) (string, error) {
	return p.await(ctx, p.Send(words...), words[0])
}

func (p *Process) await(ctx context.Context, ch <-chan string, what string) (string, error) {
	select {
	case answer := <-ch:
		kind, rest, _ := strings.Cut(answer, " ")
		if kind != "ok" {
			return "", fmt.Errorf("the second process: %s: %s", what, rest)
		}
		return strings.TrimSpace(rest), nil
	case <-p.done:
		return "", fmt.Errorf("the second process ended during %s", what)
	case <-ctx.Done():
		return "", fmt.Errorf("the second process: %s: %w", what, ctx.Err())
	}
}

// Lock makes the process lock a name and returns the token.
func (p *Process) Lock(ctx context.Context, name string, ttl time.Duration) (fencelock.Token, error) {
	return p.lock(ctx, name, ttl, 0)
}

func (p *Process) lock(ctx context.Context, name string, ttl, grace time.Duration) (fencelock.Token, error) {
	text, err := p.Ask(ctx, "lock", name, ttl.String(), grace.String())
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// Kill ends the process as if by SIGKILL and waits until it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
}
