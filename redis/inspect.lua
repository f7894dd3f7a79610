-- Describes a lock. Follows shape.lua.
-- KEYS  1 lock  2 queue  3 waiters   ARGV  1 as in shape.lua
-- Reply {value or "", 1 if it is there, pttl, live waiters, 1 if it is shaped like a lock}
local what = shape(KEYS[1], ARGV[1])
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if what ~= 'lock' then return value end
  value = ''
end
local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local live = 0
for _, w in ipairs(redis.call('HVALS', KEYS[3])) do
  local till = string.match(w, '^(%d+) ')
  if till and tonumber(till) >= ms then live = live + 1 end
end
return {value or '', value and 1 or 0, redis.call('PTTL', KEYS[1]), live, what == 'lock' and 1 or 0}
