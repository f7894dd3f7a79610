package redis

import (
	"embed"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/redisnode"
)

//go:embed *.lua
var files embed.FS

func lua(names ...string) string { return redisnode.Lua(files, names...) }

// The scripts. The one that every lock pays for begins with what uncontended
// ones need, and returns before the queue's functions are even defined.
var (
	lineLua = lua("queue", "holds") + function("groups()", "groups") + lua("serve")
	comeLua = function("lockvalue(key)", "shape", "value") + function("gated()", "gates", "gated") + lua("join")

	runScript = newScript(lua("refuse", "clock", "args", "run") + lineLua +
		"if a > 0 then\n" + comeLua + lua("acquire") + "end\n" +
		"if r > 0 then\n" + lua("left", "release") + "end\n" + lua("rest"))
	shareScript      = newScript(lua("refuse", "clock", "args") + lineLua + comeLua + lua("left", "share", "rest"))
	renewScript      = newScript(lua("refuse", "behind", "renew"))
	checkScript      = newScript(lua("refuse", "behind", "check"))
	keepSharedScript = newScript(lua("refuse", "behind", "clock", "keepshared"))
	breakScript      = newScript(lua("shape", "clock") + lineLua + lua("left", "break"))
	inspectScript    = newScript(lua("shape", "clock", "inspect"))

	loadScript      = newScript(lua("gates", "load"))
	swapScript      = newScript(lua("gates", "swap"))
	clientsScript   = newScript(lua("clock", "clients"))
	sourceScript    = newScript(lua("source"))
	raiseScript     = newScript(lua("raise"))
	raiseHeldScript = newScript(lua("raiseheld", "raise"))
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

// function is a Lua function of what files do. Their own functions are there only once it is called.
func function(head string, names ...string) string {
	return "local function " + head + "\n" + lua(names...) + "end\n"
}
