-- Releases and acquires of claims that several may have at once: readers and permits. One, or several
-- that go together, which rest.lua does one by one.
--
-- KEYS, ARGV and replies as in run.lua, but
--   the kind of an acquire: t to try, w to wait, with the number of the ask if a push may grant by it; then
--     :mode, r or p, and the limit of a permit, or 0; then :ticket:floor
--   granted: {token, slot}
local replies = {}
if a > 0 then clock() end

function acquire(nonce, owner, ttl, kind, claim, slack, process, pub)
  local wait, ask, mode, limit, ticket, floor =
    string.match(kind, '^([tw])(%d*):([rp])(%d+):(%d+):(%d+)$')
  limit, floor = tonumber(limit), tonumber(floor)
  groups()

  if call('EXISTS', TOMB) == 1 then return {'gone'} end
  if ahead(floor) and floor > counter() then return {'floor', num(us)} end

  -- Ours already: the same request again, which no gate refuses any more, or the waiter's
  -- confirmation of its claim.
  local value = lockvalue(LOCK)
  local n, slot, state
  if marker(value) and tonumber(call('ZSCORE', HOLDS, nonce) or 0) > ms then
    n, slot, state = string.match(call('HGET', PARTS, nonce) or '', '^%d+ (%d+) (%d+) ([hc]) ')
  end
  if state ~= 'h' and not judged(version) then
    return gated()
  end

  tally(value)
  local turn = false
  if n then
    n, slot = tonumber(n), tonumber(slot)
    if n <= floor then n = draw(floor) end
  elseif held ~= 'x' then
    turn = serve(pub, nonce, claim)
    if turn and admits(mode, limit) then n, slot = number(mode, floor) end
  end
  if n then
    put(nonce, mode, limit, owner, ttl, 'h', n, slot)
    drop(nonce)
    serve(pub, '', claim) -- those behind it may have it too
    return {n, slot}
  end
  if wait == 't' then return {'locked'} end

  -- The end of one permit makes room. Waiters drop a dead one in front of them when they look, so they
  -- look every second while the lock is held by a group.
  local foreign, most, pttl = 1, 1000
  if held == 'x' then
    value = lockvalue(LOCK)
    most = 2000
    if string.match(value, '^%x+:%d+:') then foreign = 0 end
  elseif held == 'p' and mode == 'p' then
    pttl = ends(0) - ms
  end
  if turn == nil then pttl, foreign = 0, 0 end
  local said = mode .. num(limit) .. ':' .. (ask ~= '' and ask .. '/' .. version or '-')
  return join(nonce, ticket, pttl or call('PTTL', LOCK), foreign, most, slack, process, said, owner)
end

function release(nonce, keep, kind, claim, pub)
  if kind ~= '1' and call('ZREM', QUEUE, nonce) == 1 then call('HDEL', WAITERS, nonce) end
  local value = redis.pcall('GET', LOCK) -- a key of another type is not ours
  if type(value) == 'table' then value = '' end
  groups()
  tally(value)
  local ours, had = held ~= 'x' and held ~= '' and call('ZSCORE', HOLDS, nonce), 0
  if ours then
    had = ours - ms
    remove(nonce)
  end
  local reply = left(ours, keep, kind, had)
  if held ~= 'x' then serve(pub, '', claim) end -- it may have been in the way of others, or the dead were
  return reply
end
