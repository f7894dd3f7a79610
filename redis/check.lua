-- Looks whether holds are still ours. Changes nothing.
-- KEYS  the locks   ARGV  their nonces
-- Reply for each: 1 ours | 0 not ours
local ours = {}
for i, key in ipairs(KEYS) do
  local v = redis.pcall('GET', key) -- a key of another type is not ours, and fails no others
  ours[i] = (type(v) == 'string' and string.sub(v, 1, 33) == ARGV[i] .. ':') and 1 or 0
end
return ours
