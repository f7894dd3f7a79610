package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// mounted mounts a small file system of its own.
func mounted(t *testing.T, options string) string {
	t.Helper()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("needs root on Linux, to mount")
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", options,
		"fencelock-test", dir).CombinedOutput(); err != nil {
		t.Skipf("mounting is not allowed here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	return dir
}

func TestFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	use(t, "file://"+dir)
	if runtime.GOOS != "linux" {
		finds(t, examine(t, "file://"+dir), "file-unseen")
		return
	}
	r := examine(t, "file://"+dir)
	finds(t, r)
	sound(t, r)
	has(t, examine(t, "file://"+dir+"/deeper/still"), "file-missing", "still")
	finds(t, examine(t, "file://"+dir+"?sockets=false&ttl=2s&prefix="))
	must(t, os.WriteFile(filepath.Join(dir, "FORMAT"), []byte("fencelock file backend 2\n"), 0o600))
	has(t, examine(t, "file://"+dir), "file-format", `"fencelock file backend 2\n" in `)
	for _, at := range []string{"/FORMAT", "/FORMAT/deeper"} { // no directory, and below none
		refused(t, "file://"+dir+at, "", backend.ErrInvalid)
	}
	must(t, os.Remove(filepath.Join(dir, "FORMAT")))
	must(t, os.Chmod(dir, 0o777))
	finds(t, examine(t, "file://"+dir), "file-others")
}

func TestFileFull(t *testing.T) {
	has(t, examine(t, "file://"+mounted(t, "size=512k,mode=0700")), "file-full", "512 KiB free")
	has(t, examine(t, "file://"+mounted(t, "size=8m,nr_inodes=20,mode=0700")), "file-full", "files")
	finds(t, examine(t, "file://"+mounted(t, "size=8m,mode=0700")))
}

func TestFileReadOnly(t *testing.T) {
	finds(t, examine(t, "file://"+mounted(t, "ro,size=8m,mode=0700")), "file-read-only")
}

func TestFileRights(t *testing.T) {
	if os.Getuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("every directory is root's to write")
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o500))
	finds(t, examine(t, "file://"+dir), "file-rights")
}

// A network file system cannot be mounted everywhere that tests run: what the system would tell of one.
func TestFileNetwork(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		v    volume
		want []string
	}{
		{volume{known: true, network: "NFS", free: 1 << 30}, []string{"file-network"}},
		{volume{known: true, network: "FUSE", free: 1 << 30}, []string{"file-fuse"}},
		{volume{known: true, free: 1 << 30}, nil},
		{volume{}, []string{"file-unseen"}},
	} {
		x := newExam()
		x.volume(dir, tt.v)
		finds(t, &x.report, tt.want...)
	}
}

func TestMemory(t *testing.T) {
	r := examine(t, "memory://")
	finds(t, r, "memory-alone")
	sound(t, r)
}
