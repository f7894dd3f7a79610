//go:build unix

package conformance

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// standstillEnv is set in the process that is stopped.
const standstillEnv = "FENCELOCK_CONFORMANCE_STANDSTILL"

// If the machine stands still, a rule waits so much longer. The test stops this binary, which it runs again.
func TestStandstillIsNoDelay(t *testing.T) {
	if os.Getenv(standstillEnv) != "" {
		waitOverAStandstill(t)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{cmd: exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$")}
	p.cmd.Env = append(os.Environ(), standstillEnv+"=1")
	ownGroup(p.cmd)
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	if _, err := said.ReadString('\n'); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	time.Sleep(1500 * time.Millisecond)
	if err := p.Continue(); err != nil {
		t.Error(err)
	}
	rest, _ := io.ReadAll(said)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the process that was stopped: %v\n%s", err, rest)
	}
}

// waitOverAStandstill waits in each way for half a second, of at most 750 ms. The half second is two timers one after
// the other, so that a timer of the wait that is late fires before the second.
func waitOverAStandstill(t *testing.T) {
	const half, most = 250 * time.Millisecond, 750 * time.Millisecond
	came, isThere := make(chan result, 1), make(chan struct{})
	time.AfterFunc(half, func() {
		time.AfterFunc(half, func() {
			came <- result{}
			close(isThere)
		})
	})
	var waits, begin sync.WaitGroup
	begin.Add(2)
	first := sync.OnceFunc(begin.Done)
	waits.Go(func() {
		begin.Done()
		if _, err := granted(t.Context(), came, most, "what comes"); err != nil {
			t.Errorf("granted: %v", err)
		}
	})
	waits.Go(func() {
		if err := until(t.Context(), most, "what comes", func() (bool, error) {
			first()
			select {
			case <-isThere:
				return true, nil
			default:
				return false, nil
			}
		}); err != nil {
			t.Errorf("until: %v", err)
		}
	})
	begin.Wait()
	fmt.Println("it waits")
	waits.Wait()
}
