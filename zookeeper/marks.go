package zookeeper

import (
	"fmt"
	"strconv"

	"github.com/go-zookeeper/zk"
)

// mark is an ephemeral node of a session, into which a flight with releases writes its number. So when its answer was
// lost it is found out whether the releases were done, or whether somebody else had taken the locks away.
// One flight has it at a time.
type mark struct {
	slot  int
	there bool // the node was created
}

func (m *mark) path(s *session) string {
	return fmt.Sprintf("%s/%016x-%d", s.d.at.done, uint64(s.owner()), m.slot)
}

// op is the operation that leaves the mark.
func (m *mark) op(s *session, number int64) any {
	data := strconv.AppendInt(nil, number, 10)
	if m.there {
		return &zk.SetDataRequest{Path: m.path(s), Data: data, Version: -1}
	}
	return &zk.CreateRequest{Path: m.path(s), Data: data, Acl: s.d.acl, Flags: zk.FlagEphemeral}
}
