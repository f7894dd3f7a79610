-- The acquire that found the key taken, the queue not empty, its own tombstone, gates that it does not know or
-- that refuse it, or no counter yet. Follows queue.lua; what it is given and replies: run.lua.
local function acquire(nonce)
  local refused, known = string.match(version, '^(!?)(.*)$')
  local ticket, floor, reserve = string.match(kind, '(%d+):(%d+):(%d+)$')
  floor, reserve = tonumber(floor or 0), tonumber(reserve or 0)
  local claim, slack, process, pub = string.match(ARGV[3], '^%d+ %d (%d+) (%d+) (%S+) (%S+)$')

  if call('EXISTS', TOMB) == 1 then return {'gone'} end

  -- The lock is the request's, with the token n. What follows n is free for it up to where the counter is moved: all that was
  -- drawn since n are tickets, and tokens of other names.
  local function granted(n)
    if n <= floor then n = draw(floor) end
    call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner, 'PX', ttl)
    drop(nonce)
    if reserve == 0 then return n end
    local r = max(0, min(reserve, us + 3000 - n))
    if r > 0 and tonumber(call('GET', COUNTER) or 0) < n + r then call('SET', COUNTER, num(n + r)) end
    return {n, r}
  end

  -- Ours already: the same request again, which no gate refuses any more, or the waiter's confirmation of its claim.
  local value = call('GET', LOCK)
  local mine = value and sub(value, 1, 33) == nonce .. ':'
  local claimed = mine and string.byte(value, -1) == 0
  local n = mine and tonumber(string.match(value, '^%x+:(%d+):'))
  if mine and not claimed then return granted(n) end

  local stands = redis.pcall('GET', KEYS[queues])
  if type(stands) == 'table' then return {'badgate'} end
  if (stands or '-') ~= known then return {'gates'} end

  -- Refused: out of the queue, and the lock goes on to the next.
  if refused ~= '' then
    drop(nonce)
    if claimed then call('DEL', LOCK) end
    if claimed or not value then grant(pub, '', claim) end
    return {'refused'}
  end
  if claimed then return granted(n) end

  -- Free, but others wait: the first live one gets it, whoever looks.
  if not value then
    if not grant(pub, nonce, claim) then return granted(draw(floor)) end
    value = call('GET', LOCK)
  end
  if sub(kind, 1, 1) == 't' then return {'locked'} end

  -- Queue, or keep the place: a waiter that was dropped comes back with its ticket.
  local left = call('PTTL', LOCK)
  local foreign = string.match(value, '^%x+:%d+:') and 0 or 1
  local place = tonumber(call('ZSCORE', QUEUE, nonce) or 0)
  if place == 0 then
    place = tonumber(ticket)
    if place == 0 then place = draw(0) end
    call('ZADD', QUEUE, num(place), nonce)
  end
  local look = left
  if look < 0 or look > 5000 then look = 5000 end
  local alive = look + tonumber(slack)
  call('HSET', WAITERS, nonce, num(ms + alive) .. ' ' .. process .. ' ' .. owner)
  if call('PTTL', QUEUE) < alive then
    call('PEXPIRE', QUEUE, alive)
    call('PEXPIRE', WAITERS, alive)
  end
  return {'queued', num(place), left, foreign}
end
