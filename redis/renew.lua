-- Renews many holds. Compares and sets the expiry; never creates a key. Follows refuse.lua.
-- KEYS  the locks   ARGV  for each: nonce, ttl ms
-- Reply for each: 1 renewed | 0 not ours
local done = {}
for i, key in ipairs(KEYS) do
  local v = redis.pcall('GET', key) -- a key of another type is not ours, and fails no others
  if type(v) == 'string' and string.sub(v, 1, 33) == ARGV[2 * i - 1] .. ':' then
    done[i] = redis.pcall('PEXPIRE', key, ARGV[2 * i])
    if type(done[i]) == 'table' then return refusal(done[i].err) or done[i] end
  else
    local refusal = behind(key, ARGV[2 * i - 1])
    if refusal then return refusal end
    done[i] = 0
  end
end
return done
