package stores

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// envEtcd names an etcd program to use instead of building one.
const envEtcd = "FENCELOCK_ETCD"

// buildTimeout bounds the building of etcd: a minute and a half on a small machine with nothing in its caches.
const buildTimeout = 15 * time.Minute

// module is this project's, whose source tree holds the module of the etcd server.
const module = "github.com/fencelock/fencelock"

// EtcdProgram returns the path of an etcd server: what FENCELOCK_ETCD names, else one that [Build] makes
// from etcd's module, else etcd in PATH.
func EtcdProgram(ctx context.Context) (string, error) {
	if program := os.Getenv(envEtcd); program != "" {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s: %w: %w", envEtcd, ErrMissing, err)
		}
		return program, nil
	}
	program, err := Build(ctx, "etcdserver")
	if errors.Is(err, ErrMissing) {
		if installed, none := exec.LookPath("etcd"); none == nil {
			return installed, nil
		}
	}
	return program, err
}

// Build returns the path of a program of this project whose module is a folder beside this package:
// it is built once for each version, into the cache. Outside of this project's source tree, or
// without Go, the error matches [ErrMissing].
func Build(ctx context.Context, folder string) (string, error) {
	source, err := sourceOf(ctx, folder)
	if err != nil {
		return "", err
	}
	version, err := sourceHash(source)
	if err != nil {
		return "", err
	}
	return cached(ctx, folder+"-"+version, func(path string) error { return build(ctx, source, path) })
}

// sourceOf finds the folder.
func sourceOf(ctx context.Context, folder string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("%s is %w: Go and the source tree of %s are needed to build it: %w",
			folder, ErrMissing, module, err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "internal", "servers", folder)
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return "", fmt.Errorf("%s is %w: its source is not there: %w", folder, ErrMissing, err)
	}
	return dir, nil
}

func build(ctx context.Context, source, path string) error {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, ".")
	cmd.Dir = source
	// Without cgo it runs in an image that holds nothing else. The flags of a test run (-race,
	// -cover, -mod) are not for it.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		err = fmt.Errorf("build in %s: %w: %s", source, err, out)
		if ctx.Err() == nil {
			err = errors.Join(fmt.Errorf("%s is %w", filepath.Base(source), ErrMissing), err)
		}
		return err
	}
	return nil
}

// sourceHash names a version of a program: what it is built from and for.
func sourceHash(dir string) (string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	parts := runtime.GOOS + "/" + runtime.GOARCH
	for _, name := range append(names, filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")) {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		parts += "\x00" + string(b)
	}
	return hash(parts), nil
}

// hash is a short name for a text.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

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
