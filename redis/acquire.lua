-- The acquire that found the key taken, the queue not empty, its own tombstone, gates that the
-- client does not know, or no counter yet. What it is given and replies: run.lua.
function acquire(nonce, owner, ttl, kind, claim, slack, process, pub)
  local ticket, floor, reserve = string.match(kind, '(%d+):(%d+):(%d+)$')
  floor, reserve = tonumber(floor or 0), tonumber(reserve or 0)

  local seen = call('MGET', LOCK, TOMB)
  if seen[2] then return {'gone'} end
  if ahead(floor) and floor > counter() then return {'floor', num(us)} end

  -- Ours already: the same request again, which no gate refuses any more, or the waiter's
  -- confirmation of its claim.
  local value = seen[1] or lockvalue(LOCK)
  local mine = value and sub(value, 1, 33) == nonce .. ':'
  local claimed = mine and string.byte(value, -1) == 0
  local n, turn = mine and tonumber(string.match(value, '^%x+:(%d+):')), false
  if claimed or not mine then
    if not pass then return gated() end
    if not mine then
      -- The lock is free and others wait: any look serves the first live ones. A reader or a permit makes room by its
      -- end, and so does a waiter that has died.
      tally(value)
      if held ~= 'x' then
        turn = serve(pub, nonce, claim)
        if turn and held == '' then n = draw(floor) else value = call('GET', LOCK) or '' end
      end
    end
  end
  if not n then
    if sub(kind, 1, 1) == 't' then return {'locked'} end
    local pttl, foreign = call('PTTL', LOCK), string.match(value, '^%x+:%d+:') and 0 or 1
    if turn == nil then pttl, foreign = 0, 0 end
    local ask = string.match(kind, '^w(%d+)')
    local said = ask and ask .. '/' .. version or '-'
    return join(nonce, ticket, pttl, foreign, held == 'x' and 2000 or 1000, slack, process, said, owner)
  end

  -- The lock is the request's, with the token n. What follows n is free for it up to where the
  -- counter is moved: all that was drawn since n are tickets, and tokens of other names.
  if n <= floor then n = draw(floor) end
  local more = max(0, min(reserve, us + 3000 - n))
  local top = more > 0 and counter() -- which may fail, so before the lock is written
  call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner, 'PX', ttl)
  drop(nonce)
  if reserve == 0 then return n end
  if more > 0 and top < n + more then call('SET', COUNTER, num(n + more)) end
  return {n, more}
end
