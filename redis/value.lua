-- The value of the lock with the key, nil for none, and '' where a stranger holds it as a lock of Redisson: what
-- lockvalue(key) does. Follows shape.lua.
local value = redis.pcall('GET', key)
if type(value) == 'table' then
  if shape(key) ~= 'lock' then error(value) end
  return ''
end
return value or nil
