//go:build !unix

package main

import "io/fs"

// checkOwner trusts the system: here the temporary directory is the user's own.
func checkOwner(string, fs.FileInfo) error { return nil }
