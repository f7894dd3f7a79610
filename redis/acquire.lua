-- The acquire that found the key taken, the queue not empty, its own tombstone, gates that the
-- client does not know, or no counter yet. Follows shape.lua, queue.lua, holds.lua and gates.lua; what it
-- is given and replies: run.lua.
local function acquire(nonce, owner, ttl, kind, claim, slack, process, pub)
  local ticket, floor, reserve = string.match(kind, '(%d+):(%d+):(%d+)$')
  floor, reserve = tonumber(floor or 0), tonumber(reserve or 0)

  if call('EXISTS', TOMB) == 1 then return {'gone'} end
  if ahead(floor) and floor > counter() then return {'floor', num(us)} end

  -- The lock is the request's, with the token n. What follows n is free for it up to where the
  -- counter is moved: all that was drawn since n are tickets, and tokens of other names.
  local function granted(n)
    if n <= floor then n = draw(floor) end
    local r = max(0, min(reserve, us + 3000 - n))
    local top = r > 0 and counter() -- which may fail, so before the lock is written
    call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner, 'PX', ttl)
    drop(nonce)
    if reserve == 0 then return n end
    if r > 0 and top < n + r then call('SET', COUNTER, num(n + r)) end
    return {n, r}
  end

  -- Ours already: the same request again, which no gate refuses any more, or the waiter's
  -- confirmation of its claim.
  local value = lockvalue(LOCK)
  local mine = value and sub(value, 1, 33) == nonce .. ':'
  local claimed = mine and string.byte(value, -1) == 0
  local n = mine and tonumber(string.match(value, '^%x+:(%d+):'))
  if mine and not claimed then return granted(n) end

  if not judged(version) then
    local now, all = gates(GATES)
    return now and {'gates', now, listed(all)} or {'badgate'}
  end
  if claimed then return granted(n) end

  -- Free, but others wait: the first live ones get it, whoever looks. Those beside whom others may hold
  -- make room by their end, and a waiter that has died by that.
  tally(value)
  if held ~= 'x' then
    serve(pub, nonce, claim)
    if held == '' then return granted(draw(floor)) end
    value = call('GET', LOCK)
  end
  if sub(kind, 1, 1) == 't' then return {'locked'} end

  local foreign = string.match(value, '^%x+:%d+:') and 0 or 1
  local ask = string.match(kind, '^w(%d+)')
  local said = ask and ask .. '/' .. version or '-'
  return join(nonce, ticket, call('PTTL', LOCK), foreign, held == 'x' and 5000 or 1000, slack, process, said, owner)
end
