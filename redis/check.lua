-- Looks whether many holds are still ours, and changes nothing. Follows refuse.lua and behind.lua. It is a script
-- because a client may send plain reads to replicas, which can be behind, and never sends a script
-- there.
-- KEYS  the locks   ARGV  1 "nonce:" of each, one after the other
-- Reply how many are ours, and then which are not
local sub, nonces = string.sub, ARGV[1]
local reply = {#KEYS}
for i, v in ipairs(redis.call('MGET', unpack(KEYS))) do -- of another type is none: not ours, and it fails no others
  local nonce = sub(nonces, 33 * i - 32, 33 * i)
  if not v or sub(v, 1, 33) ~= nonce then
    local refusal = behind(KEYS[i], sub(nonce, 1, 32))
    if refusal then return refusal end
    reply[1] = reply[1] - 1
    reply[#reply + 1] = i
  end
end
return reply
