-- Renews many holds of groups, or looks whether they are still ours; never creates one. Follows
-- refuse.lua and clock.lua.
-- KEYS  for each: lock, HOLDS and PARTS of holds.lua
-- ARGV  for each: nonce, ttl ms, or 0 to look
-- Reply for each: 1 renewed, or ours | 0 not ours
clock()
local done = {}
for i = 1, #KEYS / 3 do
  local lock, holds, parts = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local nonce, ttl = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local v = redis.pcall('GET', lock) -- a key of another type is not ours, and fails no others
  local till = type(v) == 'string' and string.match(v, '^shared:[rp]:%d+$') and redis.pcall('ZSCORE', holds, nonce)
  if type(till) == 'string' and tonumber(till) > ms then
    done[i] = 1
    if ttl > 0 then
      -- The expiry first: a server without memory sets it, and what follows it in the same script.
      local last = max(ms + ttl, tonumber(call('ZRANGE', holds, -1, -1, 'WITHSCORES')[2])) - ms
      for _, key in ipairs({lock, holds, parts}) do
        local reply = redis.pcall('PEXPIRE', key, num(last))
        if type(reply) == 'table' then return refusal(reply.err) or reply end
      end
      call('ZADD', holds, num(ms + ttl), nonce)
    end
  else
    local refusal = behind(lock, nonce)
    if refusal then return refusal end
    done[i] = 0
  end
end
return done
