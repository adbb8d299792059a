package main

import (
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

//go:embed recipe
var recipe embed.FS

// unusedFor is how long an image stays that no run asks for any more.
const unusedFor = 14 * 24 * time.Hour

// image is a folder with vmlinuz, initrd.gz and rootfs.ext4. Guests only read
// it, so that any number may run.
type image struct{ dir string }

func (i image) path(name string) string { return filepath.Join(i.dir, name) }

// recipeKey names an image by what it is made from.
func recipeKey() (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(recipe, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := recipe.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(data), data)
		return err
	})
	return fmt.Sprintf("%x", sum.Sum(nil))[:16], err
}

// findImage returns the recipe's image, and builds it where the cache has
// none. Another run that builds is waited for.
func findImage(ctx context.Context, cache string, say func(string, ...any)) (image, error) {
	key, err := recipeKey()
	if err != nil {
		return image{}, fmt.Errorf("cannot read the recipe: %w", err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return image{}, fmt.Errorf("cannot make the image cache %q (-cache or VM_CACHE=): %w", cache, err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return image{}, fmt.Errorf("cannot lock the image cache: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return image{}, fmt.Errorf("cannot lock the image cache %q: %w", cache, err)
	}
	img := image{dir: filepath.Join(cache, key)}
	if _, err := os.Stat(img.path("rootfs.ext4")); err == nil {
		now := time.Now()
		return img, os.Chtimes(img.dir, now, now)
	}
	if err := buildImage(ctx, cache, img, say); err != nil {
		return image{}, fmt.Errorf("cannot build the guest's image: %w", err)
	}
	return img, nil
}

// buildImage makes the image beside its place, so that a broken build is
// never taken for one. The caller holds the cache's lock.
func buildImage(ctx context.Context, cache string, img image, say func(string, ...any)) error {
	began := time.Now()
	say("building the image %s", img.dir)
	sweep(cache)
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // after the rename there is only the recipe in it
	made := filepath.Join(tmp, "image")
	if err := os.CopyFS(tmp, recipe); err != nil {
		return err
	}
	for _, dir := range []string{tmp, made} { // apt's own user goes through them
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(tmp, "recipe/build.sh"), filepath.Join(tmp, "recipe"), made)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("recipe/build.sh: %w", err)
	}
	if err := os.Rename(made, img.dir); err != nil {
		return err
	}
	say("built in %.0f s", time.Since(began).Seconds())
	return nil
}

// sweep removes images of old recipes, and what a killed build has left. A
// guest that runs on a removed image has its files open. The caller holds the
// cache's lock.
func sweep(cache string) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return // the build tells
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() {
			continue
		}
		broken, _ := filepath.Match("tmp-*", e.Name()) // the pattern is good
		if broken || time.Since(info.ModTime()) > unusedFor {
			_ = os.RemoveAll(filepath.Join(cache, e.Name())) // room is all it costs
		}
	}
}
