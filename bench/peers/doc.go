// Package peers compares Fencelock with other libraries, side by side in one run. It is a module of its own, so that their
// dependencies are not the library's.
package peers
