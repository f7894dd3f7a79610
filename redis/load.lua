-- Reads the gates of one place. Follows gates.lua.
-- KEYS  1 version  2 gates
-- Reply {version, migration, record, ...} | {}: what stands there are no gates
local version, all = gates(KEYS[1])
if not version then return {} end
return {version, unpack(all)}
