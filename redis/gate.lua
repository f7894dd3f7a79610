-- Writes a gate in one place, if it is there what the writer expects.
-- KEYS  1 gates: hash migration -> record as JSON
-- ARGV  1 migration  2 record  3 its epoch  4 the epoch expected: 0 for none, -1 for any lower one
-- Reply 1 it stands there now | 0 another does | -1 what stands there is no gate
local old = redis.pcall('HGET', KEYS[1], ARGV[1])
if old == ARGV[2] then return 1 end
local epoch = 0
if old then
  local ok, g = pcall(cjson.decode, old)
  if not ok or type(g) ~= 'table' or type(g.epoch) ~= 'number' then return -1 end
  epoch = g.epoch
end
local was = tonumber(ARGV[4])
if epoch ~= was and (was ~= -1 or epoch >= tonumber(ARGV[3])) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
