package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A mutant is one change of a file.
type mutant struct {
	File  string
	Line  int
	Func  string
	Was   string // the line, without the space around it
	Do    string // what is changed
	State string `json:",omitempty"`
	By    string `json:",omitempty"` // the tests that found it

	begins  int    // the line at which a test comes by that gets here
	source  []byte // of the file
	at, end int    // the bytes that become text
	text    string
}

// String is how a mutant is listed.
func (m *mutant) String() string {
	by := ""
	if m.State == lived && m.By != "" {
		by = " (" + m.By + ")"
	}
	return fmt.Sprintf("%s:%d: %s: %s: %s%s", m.File, m.Line, m.Func, m.Do, m.Was, by)
}

// key is the same when lines have moved.
func (m *mutant) key() string { return fmt.Sprintf("%s: %s: %s: %s", m.File, m.Func, m.Do, m.Was) }

// swaps are the operators that are taken for others.
var swaps = map[token.Token][]token.Token{
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LSS: {token.GEQ, token.LEQ}, token.LEQ: {token.GTR, token.LSS},
	token.GTR: {token.LEQ, token.GEQ}, token.GEQ: {token.LSS, token.GTR},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD},
	token.MUL: {token.QUO}, token.QUO: {token.MUL},
}

// mutants returns the mutants of the room's files whose path has the part only.
func (r room) mutants(only string) ([]*mutant, error) {
	var all []*mutant
	for _, pattern := range r.files {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			return nil, fmt.Errorf("%s: no files (%w)", pattern, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") || !strings.Contains(path, only) {
				continue
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			ms, err := mutantsOf(path, source)
			if err != nil {
				return nil, err
			}
			all = append(all, ms...)
		}
	}
	return all, nil
}

// mutantsOf are the mutants of one file: an operator or a count taken for another, a ! left out, and a statement left
// out that calls, defers, sends or assigns. Mutants that are alike in one function and line are numbered.
func mutantsOf(path string, source []byte) ([]*mutant, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(source), "\n")
	var all []*mutant
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		begins := make(map[ast.Expr]int) // the conditions of cases, which are no statements, and where their switch is
		add := func(from, to token.Pos, text, do string) {
			at, line := fset.Position(from).Offset, fset.Position(from).Line
			begin := line
			for e, l := range begins {
				if e.Pos() <= from && from < e.End() {
					begin = l
				}
			}
			m := &mutant{
				File: path, Line: line, Func: fn.Name.Name, Was: strings.TrimSpace(lines[line-1]), Do: do,
				begins: begin, source: source, at: at, end: fset.Position(to).Offset, text: text,
			}
			for n := 2; slices.ContainsFunc(all, func(o *mutant) bool { return o.key() == m.key() }); n++ {
				m.Do = fmt.Sprintf("%s (%d)", do, n)
			}
			all = append(all, m)
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SwitchStmt:
				for _, clause := range n.Body.List {
					for _, e := range clause.(*ast.CaseClause).List {
						begins[e] = fset.Position(n.Pos()).Line
					}
				}
			case *ast.BinaryExpr:
				for _, op := range swaps[n.Op] {
					to := n.OpPos + token.Pos(len(n.Op.String()))
					add(n.OpPos, to, op.String(), fmt.Sprintf("%s for %s", op, n.Op))
				}
			case *ast.UnaryExpr:
				if n.Op == token.NOT {
					add(n.OpPos, n.OpPos+1, "", "no !")
				}
			case *ast.IncDecStmt:
				op := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
				add(n.TokPos, n.TokPos+2, op, op+" for "+n.Tok.String())
			case *ast.ExprStmt:
				if call, ok := n.X.(*ast.CallExpr); ok && !unlocks(call) {
					add(n.Pos(), n.End(), "", "no call")
				}
			case *ast.DeferStmt:
				if !unlocks(n.Call) {
					add(n.Pos(), n.End(), "", "no defer")
				}
			case *ast.SendStmt:
				add(n.Pos(), n.End(), "", "no send")
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					add(n.Pos(), n.End(), "", "no assignment")
				}
			}
			return true
		})
	}
	return all, nil
}

// unlocks reports whether a call unlocks a mutex: all that comes by later hangs without it.
func unlocks(call *ast.CallExpr) bool {
	of, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (of.Sel.Name == "Unlock" || of.Sel.Name == "RUnlock")
}

// overlay writes the changed file into a folder, and what the compiler has to know of it. Lines keep their
// numbers.
func (m *mutant) overlay(dir string) (string, error) {
	path, err := filepath.Abs(m.File)
	if err != nil {
		return "", err
	}
	lines := strings.Repeat("\n", strings.Count(string(m.source[m.at:m.end]), "\n"))
	changed := slices.Concat(m.source[:m.at], []byte(m.text+lines), m.source[m.end:])
	file := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{path: file}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// lines are the lines of files that tests come by.
type lines map[string]map[int]bool

// read takes in a coverage profile: lines such as example.com/m/file.go:10.2,12.3 2 1.
func (l lines) read(profile string) {
	for line := range strings.Lines(profile) {
		at, rest, ok := strings.Cut(strings.TrimPrefix(line, "github.com/fencelock/fencelock/"), ".go:")
		var first, last, col, statements, count int
		if !ok {
			continue
		}
		_, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &first, &col, &last, &col, &statements, &count)
		if err != nil || count == 0 {
			continue
		}
		file := at + ".go"
		if l[file] == nil {
			l[file] = make(map[int]bool)
		}
		for n := first; n <= last; n++ {
			l[file][n] = true
		}
	}
}

// readArgued reads the changes that need not be found: the key of one, and indented below it the reason.
func readArgued(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	why, key := make(map[string]string), ""
	for in := bufio.NewScanner(file); in.Scan(); {
		switch text := in.Text(); {
		case strings.TrimSpace(text) == "" || strings.HasPrefix(text, "#"):
		case strings.HasPrefix(text, "\t"):
			why[key] = strings.TrimSpace(why[key] + " " + strings.TrimSpace(text))
		default:
			if _, ok := why[text]; ok {
				return nil, fmt.Errorf("%s: argued twice: %s", path, text)
			}
			key = text
			why[key] = ""
		}
	}
	return why, nil
}
