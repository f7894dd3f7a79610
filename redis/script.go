package redis

import _ "embed"

var (
	//go:embed clock.lua
	clockLua string
	//go:embed run.lua
	runLua string
	//go:embed queue.lua
	queueLua string
	//go:embed acquire.lua
	acquireLua string
	//go:embed release.lua
	releaseLua string
	//go:embed rest.lua
	restLua string
	//go:embed renew.lua
	renewLua string
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

// The scripts. The one that every lock pays for begins with what uncontended
// ones need, and returns before the queue's functions are even defined.
var (
	runScript     = newScript(clockLua + runLua + queueLua + acquireLua + releaseLua + restLua)
	renewScript   = newScript(renewLua)
	breakScript   = newScript(clockLua + queueLua + breakLua)
	inspectScript = newScript(inspectLua)

	gateScript      = newScript(gateListLua + gateLua)
	gatesScript     = newScript(gateListLua + gatesLua)
	raiseScript     = newScript(raiseLua)
	sourceScript    = newScript(sourceLua)
	raiseHeldScript = newScript(raiseHeldLua)
	clientsScript   = newScript(clientsLua)
)
