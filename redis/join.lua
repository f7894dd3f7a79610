-- Queues a waiter, or keeps its place: one that was dropped comes back with its ticket. The lock is free
-- in pttl ms, as far as one can tell, and the waiter looks again within most ms. Returns the reply.
local function join(nonce, ticket, pttl, foreign, most, slack, process, said, owner)
  local dropped = 0
  if ticket == '0' then
    ticket = num(draw(0))
    if call('ZADD', QUEUE, 'NX', ticket, nonce) == 0 then ticket = num(tonumber(call('ZSCORE', QUEUE, nonce))) end
  else
    dropped = call('ZADD', QUEUE, 'NX', ticket, nonce)
    local line = call('ZRANGE', QUEUE, 1, 64)
    for i = 1, #line, 16 do -- at most four of them; a waiter that died a minute ago goes
      local h = line[(us + i) % #line + 1]
      local till = string.match(call('HGET', WAITERS, h) or '', '^(%d+) ')
      if h ~= nonce and (not till or tonumber(till) < ms - 60000) then drop(h) end
    end
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
