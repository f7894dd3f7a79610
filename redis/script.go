package redis

import (
	_ "embed"

	goredis "github.com/redis/go-redis/v9"
)

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
	//go:embed gate.lua
	gateLua string
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
	acquireScript = goredis.NewScript(fastLua + queueLua + acquireLua)
	releaseScript = goredis.NewScript(freedLua + queueLua + releaseLua)
	renewScript   = goredis.NewScript(renewLua)
	checkScript   = goredis.NewScript(checkLua)
	breakScript   = goredis.NewScript(queueLua + breakLua)
	inspectScript = goredis.NewScript(inspectLua)

	gateScript      = goredis.NewScript(gateLua)
	raiseScript     = goredis.NewScript(raiseLua)
	sourceScript    = goredis.NewScript(sourceLua)
	raiseHeldScript = goredis.NewScript(raiseHeldLua)
	clientsScript   = goredis.NewScript(clientsLua)
)
