-- The acquire that found the key taken, the queue not empty, its own tombstone, gates that the
-- client does not know, or no counter yet. Follows shape.lua, queue.lua and gates.lua; what it is given and
-- replies: run.lua.
local function acquire(nonce, owner, ttl, kind, claim, slack, process, pub)
  local ticket, floor, reserve = string.match(kind, '(%d+):(%d+):(%d+)$')
  floor, reserve = tonumber(floor or 0), tonumber(reserve or 0)

  if call('EXISTS', TOMB) == 1 then return {'gone'} end
  if ahead(floor) and floor > tonumber(call('GET', COUNTER) or 0) then return {'floor', num(us)} end

  -- The lock is the request's, with the token n. What follows n is free for it up to where the
  -- counter is moved: all that was drawn since n are tickets, and tokens of other names.
  local function granted(n)
    if n <= floor then n = draw(floor) end
    call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner, 'PX', ttl)
    drop(nonce)
    if reserve == 0 then return n end
    local r = max(0, min(reserve, us + 3000 - n))
    if r > 0 and tonumber(call('GET', COUNTER) or 0) < n + r then call('SET', COUNTER, num(n + r)) end
    return {n, r}
  end

  -- Ours already: the same request again, which no gate refuses any more, or the waiter's
  -- confirmation of its claim.
  local value = redis.pcall('GET', LOCK)
  if type(value) == 'table' then -- a stranger holds it if that is a lock of Redisson
    if shape(LOCK) ~= 'lock' then error(value) end
    value = ''
  end
  local mine = value and sub(value, 1, 33) == nonce .. ':'
  local claimed = mine and string.byte(value, -1) == 0
  local n = mine and tonumber(string.match(value, '^%x+:(%d+):'))
  if mine and not claimed then return granted(n) end

  if not judged(version) then
    local now, all = gates(GATES)
    return now and {'gates', now, listed(all)} or {'badgate'}
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
  local dropped = 0
  if place == 0 then
    place = tonumber(ticket or 0)
    if place ~= 0 then dropped = 1 end
    if place == 0 then place = draw(0) end
    call('ZADD', QUEUE, num(place), nonce)
  end
  local look = left
  if look < 0 or look > 5000 then look = 5000 end
  local alive = look + tonumber(slack)
  local ask = string.match(kind, '^w(%d+)')
  local said = ask and ask .. '/' .. version or '-'
  call('HSET', WAITERS, nonce, num(ms + alive) .. ' ' .. process .. ' ' .. said .. ' ' .. owner)
  if call('PTTL', QUEUE) < alive then
    call('PEXPIRE', QUEUE, alive)
    call('PEXPIRE', WAITERS, alive)
  end
  return {'queued', num(place), left, foreign, dropped}
end
