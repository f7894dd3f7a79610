-- Renews many holds of groups, or looks whether they are still ours; never creates one. Follows
-- refuse.lua, behind.lua and clock.lua.
-- KEYS  for each: lock, HOLDS and PARTS of holds.lua
-- ARGV  1 "nonce:" of each, one after the other  2... the ttl of each in ms, or 0 to look
-- Reply as of check.lua
clock()
local reply = {#KEYS / 3}
for i = 1, #KEYS / 3 do
  local lock, holds, parts = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local nonce, ttl = sub(ARGV[1], 33 * i - 32, 33 * i - 1), tonumber(ARGV[1 + i])
  local v = redis.pcall('GET', lock) -- a key of another type is not ours, and fails no others
  local till = type(v) == 'string' and string.match(v, '^shared:[rp]:%d+$') and redis.pcall('ZSCORE', holds, nonce)
  -- A refusal is the answer, for a user without the right to ask has lost nothing; a key of another type is not ours.
  if type(till) == 'table' and string.sub(till.err, 1, 9) ~= 'WRONGTYPE'
    and not string.find(till.err, '-WRONGTYPE', 1, true) then return till end
  if type(till) == 'string' and tonumber(till) > ms then
    if ttl > 0 then
      -- The expiry first: a server without memory sets it, and what follows it in the same script.
      local last = max(ms + ttl, tonumber(call('ZRANGE', holds, -1, -1, 'WITHSCORES')[2])) - ms
      for _, key in ipairs({lock, holds, parts}) do
        local set = redis.pcall('PEXPIRE', key, num(last))
        if type(set) == 'table' then return refusal(set.err) or set end
      end
      call('ZADD', holds, num(ms + ttl), nonce)
    end
  else
    local refusal = behind(lock, nonce)
    if refusal then return refusal end
    reply[1] = reply[1] - 1
    reply[#reply + 1] = i
  end
end
return reply
