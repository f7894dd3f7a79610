package stores

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
)

// envCache names the cache, the folder for files that are made once. The default is fencelock-servers in the user's
// cache.
const envCache = "FENCELOCK_CACHE"

// cached returns the path of something in the cache and makes it first if it is not there. Of several processes one
// makes it. make must put it at the path it is given.
func cached(ctx context.Context, name string, make func(path string) error) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockCache(ctx, path)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	// Made in another place and renamed, so that a file of the cache is always complete.
	draft := path + ".draft"
	if err := os.RemoveAll(draft); err != nil {
		return "", err
	}
	if err := make(draft); err != nil {
		return "", err
	}
	return path, os.Rename(draft, path)
}

func cacheDir() (string, error) {
	if dir := os.Getenv(envCache); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; set %s", err, envCache)
	}
	return filepath.Join(dir, "fencelock-servers"), nil
}

// lockCache keeps other processes from making the same thing: the kernel frees an abstract Unix
// socket with its process. Elsewhere than on Linux two processes may both make it, which costs time
// only.
func lockCache(ctx context.Context, path string) (unlock func(), err error) {
	if runtime.GOOS != "linux" {
		return func() {}, nil
	}
	var l net.Listener
	err = await(ctx, nil, func(context.Context) error {
		l, err = net.Listen("unix", "@fencelock-cache-"+hash(path))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %s to be made by another process: %w", path, err)
	}
	return func() { l.Close() }, nil
}
