package redis

import (
	_ "embed"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed refuse.lua
	refuseLua string
	//go:embed clock.lua
	clockLua string
	//go:embed run.lua
	runLua string
	//go:embed queue.lua
	queueLua string
	//go:embed holds.lua
	holdsLua string
	//go:embed gates.lua
	gatesLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed release.lua
	releaseLua string
	//go:embed rest.lua
	restLua string
	//go:embed share.lua
	shareLua string
	//go:embed keepshared.lua
	keepSharedLua string
	//go:embed renew.lua
	renewLua string
	//go:embed check.lua
	checkLua string
	//go:embed shape.lua
	shapeLua string
	//go:embed break.lua
	breakLua string
	//go:embed inspect.lua
	inspectLua string
	//go:embed load.lua
	loadLua string
	//go:embed swap.lua
	swapLua string
	//go:embed clients.lua
	clientsLua string
	//go:embed source.lua
	sourceLua string
	//go:embed raise.lua
	raiseLua string
	//go:embed raiseheld.lua
	raiseHeldLua string
)

// The scripts. The one that every lock pays for begins with what uncontended
// ones need, and returns before the queue's functions are even defined.
var (
	runScript = newScript(refuseLua + clockLua + runLua +
		shapeLua + queueLua + holdsLua + gatesLua + acquireLua + releaseLua + restLua)
	shareScript      = newScript(refuseLua + clockLua + shapeLua + queueLua + holdsLua + gatesLua + shareLua + restLua)
	renewScript      = newScript(refuseLua + renewLua)
	checkScript      = newScript(refuseLua + checkLua)
	keepSharedScript = newScript(refuseLua + clockLua + keepSharedLua)
	breakScript      = newScript(shapeLua + clockLua + queueLua + holdsLua + breakLua)
	inspectScript    = newScript(shapeLua + inspectLua)

	loadScript      = newScript(gatesLua + loadLua)
	swapScript      = newScript(gatesLua + swapLua)
	clientsScript   = newScript(clientsLua)
	sourceScript    = newScript(sourceLua)
	raiseScript     = newScript(raiseLua)
	raiseHeldScript = newScript(raiseHeldLua)
)

// script is a Lua script, called by its hash.
type script struct {
	*goredis.Script
	text, hash string
}

func newScript(text string) *script {
	s := goredis.NewScript(text)
	return &script{s, text, s.Hash()}
}
