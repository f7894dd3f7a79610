-- Writes a gate in one place, if it is there what the writer expects. Follows gatelist.lua.
-- ARGV  1 migration  2 record  3 its epoch  4 the epoch expected: 0 for none, -1 for any lower one
-- Reply 1 it stands there now | 0 another does | -1 what stands there is no gate
local function hash() return string.sub(redis.sha1hex(listed()), 1, 16) end
if foreign or (version and version ~= hash()) then return -1 end
if not version then redis.call('DEL', KEYS[2]) end -- what is left of gates that were lost
local old = version and redis.call('HGET', KEYS[2], ARGV[1])
if old == ARGV[2] then return 1 end
local epoch = 0
if old then
  local ok, g = pcall(cjson.decode, old)
  if not ok or type(g) ~= 'table' or type(g.epoch) ~= 'number' then return -1 end
  epoch = g.epoch
end
local was = tonumber(ARGV[4])
if epoch ~= was and (was ~= -1 or epoch >= tonumber(ARGV[3])) then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
all = redis.call('HGETALL', KEYS[2])
redis.call('SET', KEYS[1], hash())
return 1
