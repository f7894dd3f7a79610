package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencelock/fencelock"
)

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
