-- The uncontended acquire: the key is free, nobody waits, the request was not
-- abandoned. Everything else is below, in queue.lua and acquire.lua, which follow in the same script.
--
-- KEYS  1 lock: "nonce:token:owner" PX    2 queue: zset nonce -> ticket
--       3 waiters: hash nonce -> "until process owner"
--       4 counter of the slot             5 tombstone of this nonce
-- ARGV  1 nonce  2 ttl ms  3 "t" try or "w" wait  4 ticket drawn before, or 0  5 floor
--       6 claim ms  7 slack ms  8 process  9 PUBLISH or SPUBLISH  10 owner
-- Reply token: granted | {"gone"} abandoned before | {"locked", pttl, foreign}
--       | {"queued", ticket, pttl, foreign}
local value = redis.call('GET', KEYS[1])
if not value and redis.call('EXISTS', KEYS[2], KEYS[5]) == 0 then
  local t = redis.call('TIME')
  local n = math.max(tonumber(redis.call('GET', KEYS[4]) or 0) + 1, t[1] * 1000000 + t[2], ARGV[5] + 1)
  local s = string.format('%.0f', n)
  redis.call('SET', KEYS[4], s)
  redis.call('SET', KEYS[1], ARGV[1] .. ':' .. s .. ':' .. ARGV[10], 'PX', ARGV[2])
  return n
end
