package fencelock

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// holdID is how many digits of a hold's nonce are shown.
const holdID = 12

// show makes what a driver has said what a user may see.
func (l *Locker) show(info *Info) {
	l.passedOn(info)
	for i, h := range info.Holds {
		info.Holds[i].ID = h.ID[:min(len(h.ID), holdID)]
	}
}

// BreakHold frees one of several holds of a lock, the one that Info.Holds shows with this id: for operators. The
// others go on. Its holder is told within Traits.Revoked. One that has ended is no error.
//
// Errors: as Inspect; ErrUnsupported where the store does not tell one hold from another, or where it has more than
// the 100 that Info.Holds shows and this is none of them, for it was renewed or has ended.
func (l *Locker) BreakHold(ctx context.Context, name, id string) error {
	id = strings.ToLower(id)
	return l.call(ctx, "break", name, func(ctx context.Context) error {
		if _, err := hex.DecodeString(id); err != nil || len(id) != holdID {
			return backend.Invalid("%q is no id of a hold: want %d hex digits, as Inspect shows them", id, holdID)
		}
		rt, err := l.route(name)
		if err != nil {
			return err
		}
		info, err := rt.caller.Inspect(ctx, name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(info.Holds, func(h Held) bool { return strings.HasPrefix(h.ID, id) })
		switch {
		case i >= 0:
		case info.Holders > 0 && len(info.Holds) == 0:
			return backend.Unsupported("%s does not tell one hold from another", rt.traits.Name)
		case info.Holders > len(info.Holds):
			return backend.Unsupported("of %d holds %s shows the %d that end first, and %s is none of them: "+
				"it has ended, or was renewed; look again", info.Holders, rt.traits.Name, len(info.Holds), id)
		default:
			return nil
		}
		h := info.Holds[i]
		// Given up as if by its holder, whose request may still be under way.
		err = rt.caller.Abandon(ctx, &backend.Request{
			Name: name, Nonce: h.ID, Owner: h.Owner, TTL: max(h.ExpiresIn, rt.traits.MinTTL), Mode: info.Mode,
			Limit: backend.MostPermits, Lost: func(error) {},
		})
		if err != nil {
			return err
		}
		for _, mine := range l.holdsOf(name) {
			if mine.Nonce == h.ID {
				mine.lost(ErrLost)
			}
		}
		return nil
	})
}
