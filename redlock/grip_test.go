package redlock

import "testing"

// A vote that comes after its round was decided against it is undone all the same.
func TestVoteOfAStragglerCounts(t *testing.T) {
	t.Parallel()
	vote, held := []any{[]any{int64(0), int64(7)}}, []any{[]any{int64(1), int64(100), "x"}}
	answers := make(chan answer, 3)
	g := &grip{answers: answers, sure: make([]bool, 3)}
	g.take(answer{node: 0, replies: held})
	g.take(answer{node: 1, replies: held})
	if g.nothing() {
		t.Error("a node has not answered: got nothing to undo")
	}
	answers <- answer{node: 2, replies: vote}
	if g.nothing() {
		t.Error("the last node has voted: got nothing to undo")
	}
}
