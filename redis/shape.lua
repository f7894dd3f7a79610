-- What a lock's key holds. Under a prefix every string is a lock, as the recipe SET key value NX PX
-- writes it, whatever the value. With an empty prefix, plain = '1', an application keeps its own
-- strings there. Returns nil for no key | 'lock': ours, also of several, a token as redsync and
-- redislock write it, or a lock of Redisson | what it is instead, for people; then what is read of it: more than
-- 4,096 bytes of an application's are not, nor copied
local function shape(key, plain)
  local v = plain == '1' and redis.pcall('GETRANGE', key, 0, 4096) or redis.pcall('GET', key)
  if not v or v == '' and redis.call('EXISTS', key) == 0 then return nil end
  if type(v) == 'string' then
    if plain ~= '1' then return 'lock', v end
    if #v > 4096 then return 'a string of more than 4096 bytes', v end
    if string.match(v, '^shared:[rp]:%d+$') then return 'lock', v end
    if string.match(v, '^%x+:%d+:') and string.sub(v, 33, 33) == ':' then return 'lock', v end
    local random = #v >= 16 and string.match(v, '^[%w+/=_-]+$')
      or #v >= 22 and string.match(string.sub(v, 1, 22), '^[%w_-]+$')
    if random and string.match(v, '%d') and string.match(v, '%a') then return 'lock', v end
    return 'a string of ' .. #v .. ' bytes', v
  end
  if string.sub(v.err, 1, 9) ~= 'WRONGTYPE' and not string.find(v.err, '-WRONGTYPE', 1, true) then error(v) end
  local kind = redis.pcall('TYPE', key).ok or 'value of another type' -- to a user without the rights to look closer
  local fields = kind == 'hash' and redis.pcall('HLEN', key)
  if type(fields) == 'number' and fields <= 100 then
    local holders = 0
    for _, field in ipairs(redis.pcall('HKEYS', key)) do
      if string.match(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$') then
        holders = holders + 1
      elseif field ~= 'mode' then
        return 'a hash', v
      end
    end
    if holders > 0 then return 'lock', v end
  end
  return 'a ' .. kind, v
end
