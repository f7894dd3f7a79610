// Package faultproxy is what conformance/faultproxy offers to authors of drivers: it lies here so
// that the tests of this project's drivers need no module for it.
package faultproxy
