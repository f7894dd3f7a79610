-- Looks whether many holds are still ours, and changes nothing. Follows refuse.lua. It is a script
-- because a client may send plain reads to replicas, which can be behind, and never sends a script
-- there.
-- KEYS  the locks   ARGV  the nonces
-- Reply for each: 1 ours | 0 not ours
local answers = {}
for i, v in ipairs(redis.call('MGET', unpack(KEYS))) do -- of another type is none: not ours, and it fails no others
  if v and string.sub(v, 1, 33) == ARGV[i] .. ':' then
    answers[i] = 1
  else
    local refusal = behind(KEYS[i], ARGV[i])
    if refusal then return refusal end
    answers[i] = 0
  end
end
return answers
