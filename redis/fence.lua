-- Refuses a stale token, and remembers the greatest: the prelude of a guarded script.
-- KEYS[1]  the guard's number of the resource   ARGV[1]  the token
-- What follows sees its own KEYS and ARGV, from 1, and runs only if the token is not stale.
do
  local key, t = table.remove(KEYS, 1), table.remove(ARGV, 1)
  local seen = redis.pcall('GET', key)
  if type(seen) == 'table' or (seen and not string.match(seen, '^%d+$')) then
    return redis.error_reply('FLFOREIGN the guard\'s key holds something else')
  end
  -- Decimal numbers without leading zeros, compared as text: exact beyond 2^53 too.
  local s = seen or '0'
  if #t < #s or (#t == #s and t < s) then return redis.error_reply('FLSTALE ' .. s) end
  if t ~= s then
    -- One bad number would shut every later holder out: an hour (backend.FloorAhead) above the
    -- clock is the most, or above what was seen, for tokens stay above a clock that was set back.
    local now = redis.call('TIME')
    local us = math.max(now[1] * 1000000 + now[2], tonumber(s))
    if tonumber(t) > us + 3600000000 then return redis.error_reply('FLAHEAD ' .. string.format('%.0f', us)) end
    redis.call('SET', key, t)
  end
end
