package redis

import (
	_ "embed"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed refuse.lua
	refuseLua string
	//go:embed behind.lua
	behindLua string
	//go:embed clock.lua
	clockLua string
	//go:embed args.lua
	argsLua string
	//go:embed run.lua
	runLua string
	//go:embed queue.lua
	queueLua string
	//go:embed left.lua
	leftLua string
	//go:embed join.lua
	joinLua string
	//go:embed holds.lua
	holdsLua string
	//go:embed groups.lua
	groupsLua string
	//go:embed serve.lua
	serveLua string
	//go:embed gates.lua
	gatesLua string
	//go:embed gated.lua
	gatedLua string
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
	//go:embed value.lua
	valueLua string
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
	lineLua = queueLua + holdsLua + function("groups()", groupsLua) + serveLua
	comeLua = function("lockvalue(key)", shapeLua+valueLua) + function("gated()", gatesLua+gatedLua) + joinLua

	runScript = newScript(refuseLua + clockLua + argsLua + runLua + lineLua +
		"if a > 0 then\n" + comeLua + acquireLua + "end\n" +
		"if r > 0 then\n" + leftLua + releaseLua + "end\n" + restLua)
	shareScript      = newScript(refuseLua + clockLua + argsLua + lineLua + comeLua + leftLua + shareLua + restLua)
	renewScript      = newScript(refuseLua + behindLua + renewLua)
	checkScript      = newScript(refuseLua + behindLua + checkLua)
	keepSharedScript = newScript(refuseLua + behindLua + clockLua + keepSharedLua)
	breakScript      = newScript(shapeLua + clockLua + lineLua + leftLua + breakLua)
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

// function is a Lua function of what a file does. Its own functions are there only once it is called.
func function(head, body string) string { return "local function " + head + "\n" + body + "end\n" }
