-- Looks whether many holds are still ours, and changes nothing. Follows refuse.lua. It is a script
-- because a client may send plain reads to replicas, which can be behind, and never sends a script
-- there.
-- KEYS  the locks   ARGV  the nonces
-- Reply for each: 1 ours | 0 not ours
local answers = {}
for i, key in ipairs(KEYS) do
  local v = redis.pcall('GET', key) -- a key of another type is not ours, and fails no others
  if type(v) == 'string' and string.sub(v, 1, 33) == ARGV[i] .. ':' then
    answers[i] = 1
  else
    local refusal = behind(key, ARGV[i])
    if refusal then return refusal end
    answers[i] = 0
  end
end
return answers
