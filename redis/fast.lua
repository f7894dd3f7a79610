-- The uncontended acquire: the key is free, nobody waits, the request was not
-- abandoned, and the gates are those by which the client has judged that it may pass. Everything else is below, in
-- queue.lua and acquire.lua, which follow in the same script.
--
-- KEYS  1 lock: "nonce:token:owner" PX    2 queue: zset nonce -> ticket
--       3 waiters: hash nonce -> "until process owner"
--       4 counter of the slot             5 tombstone of this nonce
--       6 version of the gates (gate.lua); missing where there are none
-- ARGV  1 nonce  2 ttl ms  3 floor  4 owner, marked (keys.go)
--       5 version of the gates as the client knows them, "" for none; with ! in front: they refuse this request
--       6 "mode ticket claim slack process pub": t try or w wait; ticket drawn before, or 0; ms; ms; PUBLISH or SPUBLISH
--       7 how many tokens to reserve; missing for none
-- Reply token, or with ARGV 7 {token, reserved}: granted | {"gone"} abandoned before | {"locked"}
--       | {"queued", ticket, pttl, foreign} | {"gates"}: not those that the client knows | {"refused"} by them | {"badgate"}: no version of ours
local count
if ARGV[5] == '' then
  count = redis.call('EXISTS', KEYS[2], KEYS[5], KEYS[6]) == 0 and redis.call('GET', KEYS[4])
else
  local both = redis.call('MGET', KEYS[4], KEYS[6])
  count = both[2] == ARGV[5] and redis.call('EXISTS', KEYS[2], KEYS[5]) == 0 and both[1]
end
if count then
  local t = redis.call('TIME')
  local us = t[1] * 1000000 + t[2]
  local n = math.max(count + 1, us, ARGV[3] + 1)
  local s = string.format('%.0f', n)
  if redis.call('SET', KEYS[1], ARGV[1] .. ':' .. s .. ':' .. ARGV[4], 'PX', ARGV[2], 'NX') then
    if not ARGV[7] then
      redis.call('SET', KEYS[4], s)
      return n
    end
    local r = math.max(0, math.min(ARGV[7], us + 3000 - n)) -- as backend.Reserve
    redis.call('SET', KEYS[4], string.format('%.0f', n + r))
    return {n, r}
  end
end
