package stores

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// EtcdProgram returns the path of an etcd server: what FENCELOCK_ETCD names, else one built from etcd's module, once for
// each version, into the cache. Outside of this project's source tree, or without Go, the error matches [ErrMissing].
func EtcdProgram(ctx context.Context) (string, error) {
	if program := os.Getenv(envEtcd); program != "" {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s: %w: %w", envEtcd, ErrMissing, err)
		}
		return program, nil
	}
	source, err := etcdSource(ctx)
	if err != nil {
		return "", err
	}
	version, err := sourceHash(source)
	if err != nil {
		return "", err
	}
	return cached(ctx, "etcd-"+version, func(path string) error { return buildEtcd(ctx, source, path) })
}

// etcdSource finds the folder of the server's module.
func etcdSource(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("etcd is %w: Go and the source tree of %s are needed to build it, or %s: %w",
			ErrMissing, module, envEtcd, err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "internal", "servers", "etcdserver")
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return "", fmt.Errorf("etcd is %w: the source of its server is not there; set %s: %w", ErrMissing, envEtcd, err)
	}
	return dir, nil
}

func buildEtcd(ctx context.Context, source, path string) error {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, ".")
	cmd.Dir = source
	// Without cgo it runs in an image that holds nothing else. The flags of a test run (-race, -cover, -mod) are not for it.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		err = fmt.Errorf("etcd: build in %s: %w: %s", source, err, out)
		if ctx.Err() == nil {
			err = errors.Join(fmt.Errorf("etcd is %w", ErrMissing), err)
		}
		return err
	}
	return nil
}

// sourceHash names a version of the server: what it is built from and for.
func sourceHash(dir string) (string, error) {
	parts := runtime.GOOS + "/" + runtime.GOARCH
	for _, name := range []string{"main.go", "go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
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
