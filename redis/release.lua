-- The release of a lock that others wait for, or that is not ours any more, and the abandon: frees the lock if the nonce holds it, takes
-- the nonce out of the queue, and hands the lock on. Follows queue.lua; what it is given and replies: run.lua.
local function release(nonce, i)
  local keep, mark, claim, pub = string.match(ARGV[3], '^(%d+) (%d) (%d+) %d+ %S+ (%S+)$')
  if keep ~= '0' then call('SET', TOMB, '1', 'PX', keep) end
  if call('ZREM', QUEUE, nonce) == 1 then call('HDEL', WAITERS, nonce) end
  local value = redis.pcall('GET', LOCK) -- a key of another type is not ours
  if type(value) == 'string' and sub(value, 1, 33) == nonce .. ':' then
    call('DEL', LOCK)
    if mark == '1' then remember(i, i) end
    grant(pub, '', claim)
    return 1
  end
  if mark == '0' then return 0 end
  -- A release whose reply was lost finds its nonce among the last released ones.
  local ring, window = string.match(ARGV[1], '^(.*:)(%d+)$')
  for w = tonumber(window), max(0, window - 1), -1 do
    if call('LPOS', ring .. num(w), nonce .. ':') then return 1 end
  end
  return 0
end
