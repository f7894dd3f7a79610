-- Queues a waiter, or keeps its place: one that was dropped comes back with its ticket. The lock is free
-- in pttl ms, as far as one can tell, and the waiter looks again within most ms. Returns the reply.
local function join(nonce, ticket, pttl, foreign, most, slack, process, said, owner)
  local dropped = 0
  if ticket == '0' then
    ticket = num(draw(0))
    if call('ZADD', QUEUE, 'NX', ticket, nonce) == 0 then ticket = num(tonumber(call('ZSCORE', QUEUE, nonce))) end
  else
    dropped = call('ZADD', QUEUE, 'NX', ticket, nonce)
  end
  local look = pttl
  if look < 0 or look > most then look = most end
  local alive = look + tonumber(slack)
  call('HSET', WAITERS, nonce, num(ms + alive) .. ' ' .. process .. ' ' .. said .. ' ' .. owner)
  if call('PTTL', QUEUE) < alive then
    call('PEXPIRE', QUEUE, alive)
    call('PEXPIRE', WAITERS, alive)
  end
  return {'queued', ticket, pttl, foreign, dropped}
end
