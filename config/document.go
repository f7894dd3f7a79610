package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// mostBytes is the size of the largest file.
const mostBytes = 1 << 20

// document reads YAML and collects its problems.
type document struct {
	problems problems
	lines    [][]byte
	lookup   func(string) (string, bool) // the environment
}

// text is a scalar of the file.
type text struct {
	value string // with the environment's values
	shown string // as the file has it
	at    pos
}

// parse returns the root of the only document in r, or nil.
func (d *document) parse(r io.Reader) *yaml.Node {
	raw, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	switch {
	case err != nil:
		d.problems.add(pos{}, "cannot be read: %v", err)
		return nil
	case len(raw) > mostBytes:
		d.problems.add(pos{}, "larger than %d bytes", mostBytes)
		return nil
	}
	d.lines = bytes.Split(raw, []byte("\n"))
	for i, line := range d.lines {
		if !utf8.Valid(line) {
			d.problems.add(pos{i + 1, validPrefix(line) + 1}, "not UTF-8")
			return nil
		}
	}
	loader, err := yaml.NewLoader(bytes.NewReader(raw))
	var root, second yaml.Node
	if err == nil {
		err = loader.Load(&root)
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0:
		d.problems.add(pos{1, 1}, "empty: want backends and locks")
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		d.problems.add(at(&second), "a second document begins: one is allowed")
		return nil
	case !errors.Is(err, io.EOF):
		d.syntax(err)
		return nil
	}
	return root.Content[0]
}

// validPrefix returns how many characters of a line come before the first byte that is not UTF-8.
func validPrefix(line []byte) int {
	n := 0
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		if r == utf8.RuneError && size == 1 {
			break
		}
		line, n = line[size:], n+1
	}
	return n
}

// syntax reports an error of the YAML library, without the text that it may quote.
func (d *document) syntax(err error) {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		d.problems.add(pos{}, "this is not YAML")
		return
	}
	what, _, _ := strings.Cut(bad.Message, "'") // an anchor's name stands in quotes
	if what != bad.Message {
		what = "a mistake"
		if strings.Contains(bad.Message, "anchor") {
			what = "anchors and aliases are not taken"
		}
		if strings.HasPrefix(bad.Message, "did not find expected") {
			what = bad.Message // which quotes YAML's own characters only
		}
	}
	mark := bad.Mark
	if mark.Line == 0 {
		mark = bad.ContextMark
	}
	if i := mark.Line - 1; i >= 0 && i < len(d.lines) && bytes.Contains(d.lines[i], []byte("${")) {
		what += "; a value with ${…} must stand in quotes within { } and [ ]"
	}
	d.problems.add(pos{mark.Line, mark.Column}, "this is not YAML: %s", what)
}

func at(n *yaml.Node) pos { return pos{n.Line, n.Column} }

// plainNode refuses anchors, aliases and tags.
func (d *document) plainNode(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.problems.add(at(n), "anchors and aliases are not taken: write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		d.problems.add(at(n), "tags are not taken: write the plain value")
	default:
		return true
	}
	return false
}

// pairs calls do for each key of a mapping, in order, with its value. what names the mapping in messages.
func (d *document) pairs(n *yaml.Node, what string, do func(key text, value *yaml.Node)) bool {
	if !d.plainNode(n) {
		return false
	}
	if n.Kind != yaml.MappingNode {
		d.problems.add(at(n), "%s: want a mapping (key: value)", what)
		return false
	}
	split := false // YAML splits a URL without quotes at each comma, and a password with it
	for i := 0; i < len(n.Content); i += 2 {
		split = split || strings.ContainsAny(n.Content[i].Value, "@/")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if !d.plainNode(k) {
			continue
		}
		v := n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode:
			d.problems.add(at(k), "%s: a key must be a word", what)
		case strings.Contains(k.Value, "@"), split && v.Kind == yaml.ScalarNode && v.Value == "":
			d.problems.add(at(k), "%s: this is no key (a piece of a URL without quotes?): put the URL in quotes", what)
		case seen[k.Value]:
			d.problems.add(at(k), "%s: key %s stands twice", what, quote(k.Value))
		default:
			seen[k.Value] = true
			do(text{k.Value, k.Value, at(k)}, v)
		}
	}
	return true
}

// fields returns the values of a mapping that may have the known keys and must have the required
// ones, which come first.
func (d *document) fields(n *yaml.Node, what string, required int, known ...string) map[string]*yaml.Node {
	fields := map[string]*yaml.Node{}
	before := len(d.problems)
	ok := d.pairs(n, what, func(key text, value *yaml.Node) {
		if !slices.Contains(known, key.value) {
			d.problems.add(key.at, "%s: unknown key %s: known are %s",
				what, quote(key.value), strings.Join(known, ", "))
			return
		}
		fields[key.value] = value
	})
	for _, k := range known[:required] {
		if ok && fields[k] == nil && before == len(d.problems) { // else it may be what was mistyped
			d.problems.add(at(n), "%s: %s is missing", what, k)
			before++
		}
	}
	return fields
}

// text returns a scalar with the environment's values in it; ok is false if there is none to use.
func (d *document) text(n *yaml.Node, what string) (t text, ok bool) {
	if n == nil {
		return text{}, false
	}
	t = text{shown: n.Value, at: at(n)}
	if !d.plainNode(n) {
		return t, false
	}
	if n.Kind != yaml.ScalarNode {
		d.problems.add(t.at, "%s: want one value", what)
		return t, false
	}
	value, wrong := expand(n.Value, d.lookup)
	if wrong != "" {
		d.problems.add(t.at, "%s: %s", what, wrong)
		return t, false
	}
	if t.value = value; value == "" {
		d.problems.add(t.at, "%s is empty: want a value", what)
		return t, false
	}
	return t, true
}

// items calls do for each entry of a list.
func (d *document) items(n *yaml.Node, what string, do func(item *yaml.Node)) {
	if n == nil || !d.plainNode(n) {
		return
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		d.problems.add(at(n), "%s: want a list with at least one entry (- …)", what)
		return
	}
	for _, item := range n.Content {
		do(item)
	}
}

// listed joins quoted words.
func listed(words []string) string {
	if len(words) > mostShown {
		return strings.Join(words[:mostShown], ", ") + fmt.Sprintf(" and %d more", len(words)-mostShown)
	}
	return strings.Join(words, ", ")
}
