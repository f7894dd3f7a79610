-- The release of a lock that others wait for, or that is not ours any more, and the abandon: frees
-- the lock if the nonce holds it, takes the nonce out of the queue, and hands the lock on. A waiter that
-- gives up before readers or permits have it makes room for those behind it. What it is given and replies: run.lua.
function release(nonce, keep, kind, claim, pub)
  -- A holder has left the queue. In a release that is sent again this is what a demoted master refuses.
  if kind ~= '1' and call('ZREM', QUEUE, nonce) == 1 then call('HDEL', WAITERS, nonce) end
  local value = redis.pcall('GET', LOCK) -- a key of another type is not ours
  local ours = type(value) == 'string' and sub(value, 1, 33) == nonce .. ':'
  if ours then call('DEL', LOCK) end -- first: a server without memory still deletes, and then it writes too
  local reply = left(ours, keep, kind, 0)
  if ours then
    held = ''
    serve(pub, '', claim)
  elseif kind == '0' and type(value) == 'string' and marker(value) then
    tally(value)
    serve(pub, '', claim)
  end
  return reply
end
