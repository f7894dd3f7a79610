-- A lone vote for a lock that nobody holds, waits for or gave up, on a node without gates, and a lone release of one that nobody waits for: the
-- uncontended cycle, without the functions of what follows. The same as there, with fewer calls.
if #KEYS == 2 and ARGV[5] == 'v' then
  local s = redis.call('HMGET', KEYS[1], 'run', 'until', 'base', 'c' .. ARGV[11])
  if s[1] and not s[2] and redis.call('EXISTS', KEYS[2], 'fl\0rl:x' .. ARGV[6], 'fl\0rl:v' .. KEYS[2], 'fl\0rl:g' .. ARGV[4]) == 0
    and string.sub(ARGV[15], 1, 3) ~= 'to '
    and s[1] == process() then
    local t = redis.call('TIME')
    local p = math.min(tonumber(ARGV[9]), t[1] * 1000000 + t[2] + ARGV[2])
    local n = math.max((s[4] or 0) + 1, p, (s[3] or 0) + 1, ARGV[10] + 1)
    local number = string.format('%.0f', n)
    redis.call('HSET', KEYS[1], 'c' .. ARGV[11], number)
    redis.call('SET', KEYS[2], ARGV[6] .. ':' .. number .. ':' .. ARGV[14], 'PX', ARGV[8])
    if ARGV[12] ~= '0' then redis.call('HDEL', 'fl\0rl:w' .. KEYS[2], ARGV[7]) end
    return {{0, n}}
  end
elseif #KEYS == 2 and ARGV[5] == 'r' and ARGV[9] == '0' and ARGV[11] == '0' then
  local v = redis.pcall('GET', KEYS[2])
  if type(v) == 'string' and string.sub(v, 1, #ARGV[6] + 1) == ARGV[6] .. ':'
    and redis.call('EXISTS', 'fl\0rl:w' .. KEYS[2]) == 0 then
    redis.call('DEL', KEYS[2])
    if ARGV[10] == '1' then
      local ring = 'fl\0rl:r' .. ARGV[8]
      if redis.call('LPUSH', ring, ARGV[6]) > 160 then redis.call('LTRIM', ring, 0, 127) end
      redis.call('PEXPIRE', ring, 60000)
    end
    return {1}
  end
end

