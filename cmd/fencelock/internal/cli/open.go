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

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

// OpenMost bounds how long a store may take to answer first.
const OpenMost = 5 * time.Second

// closeMost bounds what the command waits at its end for the store to clean up.
const closeMost = 2 * time.Second

// Open connects to the backend, or with --config to that of the one name, or to all that the file
// uses if name is empty. With look it only looks at migrations, so that no operator's command
// switches one.
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
	if err == nil && name != "" {
		c, err = c.For(name)
	}
	if err != nil {
		return nil, err
	}
	if look {
		c = c.Look()
	}
	return c.Open(ctx, opts...)
}

// Operate connects for one of the operators' commands, which is about one name unless that is
// empty, and ends it when the user interrupts.
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

// Close closes locks, and leaves it to the end of the process where that takes long: the store
// frees what is left by itself.
func Close(locks *fencelock.Locker) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = locks.Close() // what matters was unlocked, and reported, before
	}()
	select {
	case <-done:
	case <-time.After(closeMost):
	}
}

// Configured reports whether the backends are those of a --config file.
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

// A Store is one that a command line means.
type Store struct {
	Name string // in the configuration; empty for a URL
	URL  string
}

// Stores returns the stores that the arguments mean: URLs, or with --config names of backends of
// the file. Without any they are that of --url or of the environment, or all of the file.
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

// Where says which store the command speaks to, without user, password and options: the URL's hosts
// and path, or the file of --config.
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

// ownDir returns the user's folder for locks, which nobody else can get at.
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
	// In a shared temporary directory somebody may have put one there before us, or a link to
	// another.
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
