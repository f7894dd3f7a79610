package config

import "github.com/fencelock/fencelock/backend"

// AlwaysGets is what every scenario promises.
const AlwaysGets = alwaysGets

// Kind are the words for a backend.
func Kind(name string) (url, runs, suits string) {
	k := kindOf(name)
	return k.url, k.runs, k.suits
}

// Column is a Trait as a column of the decision matrix.
type Column struct {
	Head string
	Need string // as Need.Missing has it
	Has  func(backend.Traits) bool
}

// Columns are the Traits of the decision matrix.
func Columns() []Column {
	var cs []Column
	for _, p := range promises() {
		cs = append(cs, Column{p.head, p.need, p.has})
	}
	return cs
}

// Keep is keep.
func Keep(d backend.Driver) backend.Driver { return keep(d) }
