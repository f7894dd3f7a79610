package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

// OpenMost bounds how long a store may take to answer first.
const OpenMost = 5 * time.Second

// closeMost bounds how long a command waits at its end for the clean-up in the store.
const closeMost = 2 * time.Second

// Open connects to the backend. With --config it connects to the backend of the name, or to all backends
// that the file uses if name is empty. With look it only looks at migrations, so that no operator's
// command switches one.
func (a *App) Open(
	ctx context.Context, name string, look bool, opts ...fencelock.Option,
) (*fencelock.Locker, error) {
	if !a.Configured() {
		raw, err := a.backendURL()
		if err != nil {
			return nil, err
		}
		return fencelock.Open(ctx, raw, opts...)
	}
	c, err := a.ReadConfig(a.Config.Value.String())
	if err != nil {
		return nil, err
	}
	if name != "" {
		if c, err = c.For(name); err != nil {
			return nil, err
		}
		rule, _ := c.RuleOf(name) // For has found it
		a.Moving = rule.Backend.Migrate != nil
	}
	if look {
		c = c.Look()
	}
	return c.Open(ctx, opts...)
}

// Operate connects for an operator's command and calls do, whose ctx a signal ends. The command is about
// one name, or about all if name is empty.
func (a *App) Operate(
	parent context.Context, name string, do func(context.Context, *fencelock.Locker) error,
) error {
	return Interruptible(parent, func(ctx context.Context) error {
		locks, err := a.Open(ctx, name, true)
		if err != nil {
			return err
		}
		defer Close(locks)
		return do(ctx, locks)
	})
}

// Close closes locks, and waits closeMost at the most: leases that are left then expire in the store.
func Close(locks *fencelock.Locker) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = locks.Close() // the command's own lease was unlocked, and reported, before
	}()
	select {
	case <-done:
	case <-time.After(closeMost):
	}
}

// Configured reports whether a --config file names the backends.
func (a *App) Configured() bool { return a.Config.Changed && !a.URL.Changed }

// ReadConfig reads a configuration; - is the standard input.
func (a *App) ReadConfig(path string) (*config.Config, error) {
	switch path {
	case "": // an unset variable in a script must not move the lock elsewhere
		return nil, Usagef("the configuration file's name is empty: " +
			"want a path such as locks.yaml, or no --config at all")
	case "-":
		return config.LoadEnv(a.In, a.Lookup)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, backend.Invalid("the configuration cannot be read: %v", err)
	}
	defer f.Close()
	return config.LoadEnv(f, a.Lookup)
}

// A Store is a store that a command line names.
type Store struct {
	Name string // in the configuration; empty for a URL
	URL  string
}

// Stores returns the stores of the arguments: URLs, or with --config names of backends of the file.
// Without arguments it returns the store of --url or of the environment, or all stores of the file.
func (a *App) Stores(args []string) ([]Store, error) {
	if !a.Configured() {
		if a.URL.Changed && len(args) > 0 {
			return nil, Usagef("the URL is given twice: as --url and as an argument")
		}
		if len(args) == 0 {
			raw, err := a.backendURL()
			return []Store{{URL: raw}}, err
		}
		var all []Store
		for _, raw := range args {
			all = append(all, Store{URL: raw})
		}
		return all, nil
	}
	c, err := a.ReadConfig(a.Config.Value.String())
	if err != nil {
		return nil, err
	}
	var all []Store
	var names []string
	for _, b := range c.Backends() {
		if b.Migrate == nil {
			names = append(names, b.Name)
			if len(args) == 0 || slices.Contains(args, b.Name) {
				all = append(all, Store{b.Name, b.URL()})
			}
		}
	}
	for _, name := range args {
		if !slices.Contains(names, name) {
			return nil, Usagef("with --config an argument is the name of a backend with a URL: "+
				"want one of %s", strings.Join(names, ", "))
		}
	}
	return all, nil
}

// backendURL returns --url, else FENCELOCK_URL, else the URL of the file backend in the user's own
// folder, which it makes if needed.
func (a *App) backendURL() (string, error) {
	raw, from, given := a.URL.Value.String(), "--url", a.URL.Changed
	if !given {
		from = "FENCELOCK_URL"
		raw, given = a.Lookup(from)
	}
	switch {
	case raw != "":
		return raw, nil
	case given: // an unset variable in a script must not move the lock elsewhere
		return "", Usagef("%s is empty: want a URL such as redis://host:6379/0 or "+
			"file:///var/lib/locks, or no %[1]s at all", from)
	}
	dir, err := a.ownDir()
	if err != nil {
		return "", fmt.Errorf("the default place for locks cannot be used: %w; "+
			"give --url or FENCELOCK_URL", err)
	}
	path := filepath.ToSlash(dir)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/…
	}
	return (&url.URL{Scheme: "file", Path: path}).String(), nil
}

// Where returns the hosts and path of the URL, without user, password and options, or the file of
// --config.
func (a *App) Where() string {
	if a.Configured() {
		return a.Config.Value.String()
	}
	raw, err := a.backendURL()
	if err != nil {
		return ""
	}
	u, err := backend.ParseURL(raw)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// ownDir returns the user's folder for locks. No other user has access to it.
func (a *App) ownDir() (string, error) {
	run, _ := a.Lookup("XDG_RUNTIME_DIR")
	name := "fencelock"
	if uid := os.Getuid(); run == "" && uid >= 0 {
		name = fmt.Sprintf("fencelock-%d", uid)
	}
	if run != "" && !filepath.IsAbs(run) {
		return "", backend.Invalid("XDG_RUNTIME_DIR is %q: it must be an absolute path", run)
	}
	dir := filepath.Join(cmp.Or(run, a.TempDir()), name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", backend.Invalid("%v", err)
	}
	// In a shared temporary directory another user may have made this folder first, or a link in its place.
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return "", backend.Invalid("%v", err)
	case info.Mode()&fs.ModeSymlink != 0:
		return "", backend.Invalid("%s is a symbolic link: it must be a folder of your own", dir)
	case !info.IsDir():
		return "", backend.Invalid("%s is not a folder", dir)
	}
	return dir, checkOwner(dir, info)
}

const (
	// completeMost bounds a completion: the user has pressed a key and waits.
	completeMost = 2 * time.Second
	// completeNames is how many names are offered at the most.
	completeNames = 200
)

// CompleteName offers the names that are held or waited for, as the first argument. After an error it
// offers nothing. For later arguments the shell completes as usual.
func (a *App) CompleteName(
	cmd *cobra.Command, args []string, begun string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeMost)
	defer cancel()
	locks, err := a.Open(ctx, "", true)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer Close(locks)
	var names []string
	for info, err := range locks.List(ctx, begun) {
		if err != nil || len(names) == completeNames {
			break
		}
		if strings.HasPrefix(info.Name, begun) && Safe(info.Name) == info.Name {
			names = append(names, info.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
