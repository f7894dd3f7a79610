package redis

import _ "embed"

var (
	//go:embed fast.lua
	fastLua string
	//go:embed queue.lua
	queueLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed freed.lua
	freedLua string
	//go:embed release.lua
	releaseLua string
	//go:embed renew.lua
	renewLua string
	//go:embed check.lua
	checkLua string
	//go:embed break.lua
	breakLua string
	//go:embed inspect.lua
	inspectLua string
	//go:embed gatelist.lua
	gateListLua string
	//go:embed gate.lua
	gateLua string
	//go:embed gates.lua
	gatesLua string
	//go:embed raise.lua
	raiseLua string
	//go:embed source.lua
	sourceLua string
	//go:embed raiseheld.lua
	raiseHeldLua string
	//go:embed clients.lua
	clientsLua string
)

// The scripts. The two that every lock pays for begin with what an uncontended
// one needs, and return before the queue's functions are even defined.
var (
	acquireScript = newScript(fastLua + queueLua + acquireLua)
	releaseScript = newScript(freedLua + queueLua + releaseLua)
	renewScript   = newScript(renewLua)
	checkScript   = newScript(checkLua)
	breakScript   = newScript(queueLua + breakLua)
	inspectScript = newScript(inspectLua)

	gateScript      = newScript(gateListLua + gateLua)
	gatesScript     = newScript(gateListLua + gatesLua)
	raiseScript     = newScript(raiseLua)
	sourceScript    = newScript(sourceLua)
	raiseHeldScript = newScript(raiseHeldLua)
	clientsScript   = newScript(clientsLua)
)
