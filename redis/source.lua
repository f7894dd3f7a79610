-- The greatest of many counters.
-- KEYS  the counters
-- Reply the greatest, as text | {i}: what KEYS[i] holds is no number
local top = 0
for i, key in ipairs(KEYS) do
  local v = redis.pcall('GET', key)
  local n = v and (type(v) == 'string' and string.match(v, '^%d+$') and tonumber(v))
  if v and not n then return {i} end
  if n and n > top then top = n end
end
return string.format('%.0f', top)
