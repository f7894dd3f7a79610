package redlock

import (
	_ "embed"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed fast.lua
	fastLua string
	//go:embed state.lua
	stateLua string
	//go:embed vote.lua
	voteLua string
	//go:embed hold.lua
	holdLua string
	//go:embed look.lua
	lookLua string
	//go:embed run.lua
	runLua string
)

// script is what a node runs: many operations in one call, so that the look at
// the node's run id is paid once. The lone one that most callers pay for comes first.
var script = goredis.NewScript(fastLua + stateLua + voteLua + holdLua + lookLua + runLua)
