-- Renews many holds. Compares and sets the expiry; never creates a key. Follows refuse.lua and behind.lua.
-- KEYS  the locks   ARGV  1 "nonce:" of each, one after the other  2... the ttl of each in ms
-- Reply as of check.lua
local nonces, reply = ARGV[1], {#KEYS}
for i, key in ipairs(KEYS) do
  local v = redis.pcall('GET', key) -- a key of another type is not ours, and fails no others
  local nonce, done = string.sub(nonces, 33 * i - 32, 33 * i), 0
  if type(v) == 'string' and string.sub(v, 1, 33) == nonce then
    done = redis.pcall('PEXPIRE', key, ARGV[1 + i])
    if type(done) == 'table' then return refusal(done.err) or done end
  else
    local refusal = behind(key, string.sub(nonce, 1, 32))
    if refusal then return refusal end
  end
  if done == 0 then
    reply[1] = reply[1] - 1
    reply[#reply + 1] = i
  end
end
return reply
