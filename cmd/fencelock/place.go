package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/config"
)

// configured reports whether the backends are those of a --config file.
func (a *app) configured() bool { return a.configSet && !a.urlSet }

// readConfig reads a configuration; - is the standard input.
func (a *app) readConfig(path string) (*config.Config, error) {
	switch path {
	case "":
		// An unset variable in a script must not move the lock elsewhere.
		return nil, usagef("the configuration file's name is empty: want a path such as locks.yaml, or no --config at all")
	case "-":
		return config.LoadEnv(a.in, a.lookup)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, invalid("the configuration cannot be read: %v", err)
	}
	defer f.Close()
	return config.LoadEnv(f, a.lookup)
}

// oneURL returns the URL of the store that a command about one store means: its argument, which with --config
// is the name of a backend of the file; without one that of backendURL, or the only backend of the file.
func (a *app) oneURL(args []string) (string, error) {
	switch {
	case a.configured():
		return a.urlInConfig(args)
	case len(args) == 0:
		return a.backendURL()
	case a.urlSet:
		return "", usagef("the URL is given twice: as --url and as an argument")
	}
	return args[0], nil
}

func (a *app) urlInConfig(args []string) (string, error) {
	c, err := a.readConfig(a.config)
	if err != nil {
		return "", err
	}
	have := map[string]string{}
	for _, b := range c.Backends() {
		if b.Migrate == nil {
			have[b.Name] = b.URL()
		}
	}
	names := slices.Sorted(maps.Keys(have))
	name := names[0]
	switch {
	case len(args) == 1:
		name = args[0]
	case len(names) > 1:
		return "", usagef("the configuration has several backends: name one of %s", strings.Join(names, ", "))
	}
	if have[name] == "" {
		return "", usagef("with --config the argument is the name of a backend with a URL: want one of %s", strings.Join(names, ", "))
	}
	return have[name], nil
}

// backendURL returns --url, else FENCELOCK_URL, else the URL of the file backend in the
// user's own folder, which it makes if needed.
func (a *app) backendURL() (string, error) {
	if a.urlSet {
		if a.url == "" {
			// An unset variable in a script must not move the lock elsewhere.
			return "", usagef("--url is empty: want a URL such as redis://host:6379/0 or file:///var/lib/locks, or no --url at all")
		}
		return a.url, nil
	}
	if a.configured() {
		return "", usagef("this command needs one URL, not a --config with many: give --url")
	}
	if v, _ := a.lookup("FENCELOCK_URL"); v != "" {
		return v, nil
	}
	dir, err := a.ownDir()
	if err != nil {
		return "", fmt.Errorf("the default place for locks cannot be used: %w; give --url or FENCELOCK_URL", err)
	}
	path := filepath.ToSlash(dir)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/…
	}
	return (&url.URL{Scheme: "file", Path: path}).String(), nil
}

// ownDir returns the user's folder for locks.
func (a *app) ownDir() (string, error) {
	var dir string
	if run, _ := a.lookup("XDG_RUNTIME_DIR"); run != "" {
		if !filepath.IsAbs(run) {
			return "", invalid("XDG_RUNTIME_DIR is %q: it must be an absolute path", run)
		}
		dir = filepath.Join(run, "fencelock")
	} else {
		name := "fencelock"
		if uid := os.Getuid(); uid >= 0 {
			name = fmt.Sprintf("fencelock-%d", uid)
		}
		dir = filepath.Join(a.tempDir(), name)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", invalid("%v", err)
	}
	return dir, checkOwn(dir)
}

// checkOwn returns nil if dir is a real folder that nobody else can get at.
// In a shared temporary directory somebody may have put one there before us, or
// a link to another.
func checkOwn(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return invalid("%v", err)
	case info.Mode()&fs.ModeSymlink != 0:
		return invalid("%s is a symbolic link: it must be a folder of your own", dir)
	case !info.IsDir():
		return invalid("%s is not a folder", dir)
	}
	return checkOwner(dir, info)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", fencelock.ErrInvalid, fmt.Sprintf(format, args...))
}
