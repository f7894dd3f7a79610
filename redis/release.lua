-- The release of a lock that others wait for, or that is not ours any more, and the abandon: frees
-- the lock if the nonce holds it, takes the nonce out of the queue, and hands the lock on. Follows
-- queue.lua; what it is given and replies: run.lua.
--
-- A lock that is not ours was taken away, as the first release of it can tell. It leaves a mark
-- then, as does break.lua. A release that is sent again, since no answer came to the first one, and
-- finds neither lock nor mark, finds what the first one did.
local function release(nonce, keep, kind, claim, pub)
  -- Whoever holds the lock has left the queue.
  if kind == '0' and call('ZREM', QUEUE, nonce) == 1 then call('HDEL', WAITERS, nonce) end
  local value = redis.pcall('GET', LOCK) -- a key of another type is not ours
  local ours = type(value) == 'string' and sub(value, 1, 33) == nonce .. ':'
  if ours then call('DEL', LOCK) end -- first: a server without memory still deletes, and then it writes too
  local lost = not ours and kind ~= '0' and (kind == '1' or call('GET', TOMB) == 'lost')
  if lost then
    mark(TOMB, keep)
  elseif keep ~= '0' then
    call('SET', TOMB, '1', 'PX', keep)
  end
  if ours then grant(pub, '', claim) end
  return (ours or kind == '2' and not lost) and 1 or 0
end
