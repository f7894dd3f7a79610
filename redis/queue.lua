-- The queue of a lock: what acquire.lua, release.lua, share.lua and break.lua have in common. Its order is
-- the ticket, drawn from the counter. A waiter is "until process said owner", and alive if its "until"
-- has not passed and a push to its process finds a listener. What it has said is its last ask and the
-- version of the gates that it was judged by, "ask/version", or "-" where no push may grant. A reader
-- or a permit has its mode and its limit before that, "r0:" or "p3:": a program that knows neither
-- hands it the lock as a claim of an exclusive one then, whose time passes.
local LOCK, QUEUE, WAITERS, COUNTER, TOMB, GATES, HOLDS, PARTS
local function of(lock, base, nonce)
  LOCK, QUEUE, WAITERS = lock, base .. 'q' .. lock, base .. 'm' .. lock
  COUNTER, TOMB = base .. 'c', base .. 'x' .. nonce
  HOLDS, PARTS = base .. 'h' .. lock, base .. 'o' .. lock
end

-- The channel of a process: one for all slots, or with sharded pub/sub one in each slot.
local function channel(pub, process)
  if pub == 'SPUBLISH' then return sub(COUNTER, 1, -2) .. 'p' .. process end
  return 'fl\0p' .. process
end

-- What the counter holds. tonumber takes "nan" too, which is less than no number.
local function counter()
  local n = call('GET', COUNTER) or '0'
  if not string.match(n, '^%d+$') then error({err = 'FLEND the counter of tokens holds no number'}) end
  return tonumber(n)
end

-- The next number of the slot: a fencing token or a ticket. On every grant it is
-- at least the server's clock, for a promoted replica does not know that its counter is old.
local function draw(floor)
  local n = max(counter() + 1, us, floor + 1)
  if n >= tokens then error({err = 'FLEND the counter of tokens is at its end'}) end
  call('SET', COUNTER, num(n))
  return n
end

local function drop(nonce)
  call('ZREM', QUEUE, nonce)
  call('HDEL', WAITERS, nonce)
end

local function head() return call('ZRANGE', QUEUE, 0, 0)[1] end

-- Whether the gates have this version, - for none.
local function judged(version)
  local v = redis.pcall('GET', GATES)
  return type(v) ~= 'table' and (v or '-') == version
end

-- The channel of a waiter, what it has said, its owner, and all that stands there; nil if it does not
-- live.
local function waiter(pub, nonce)
  local entry = call('HGET', WAITERS, nonce) or ''
  local till, process, said, owner = string.match(entry, '^(%d+) (%S+) (%S+) (.*)$')
  if not till or tonumber(till) < ms then return nil end
  local to = channel(pub, process)
  -- PUBLISH counts those too who listen to every channel. To a shard's nobody can by a pattern. A
  -- user without the right to PUBSUB has the count of PUBLISH alone.
  if pub == 'PUBLISH' and redis.pcall('PUBSUB', 'NUMSUB', to)[2] == 0 then return nil end
  return to, said, owner, entry
end

-- Leaves a mark that the lock was taken away from the nonce whose tombstone this is, for keep ms and no less
-- than what is there. Without memory for it a release that is sent again can take that for its own doing, which
-- is no reason to fail.
local function mark(tomb, keep)
  local reply = redis.pcall('SET', tomb, 'lost', 'PX', max(keep, 60000, call('PTTL', tomb)))
  if reply.err and not string.find(reply.err, 'OOM', 1, true) then error(reply) end
end

-- What a release or an abandon leaves behind, and its reply. A lock that is not ours was taken away, as
-- the first release of it can tell. It leaves a mark then, as does break.lua. A release that is sent
-- again, since no answer came to the first one, and finds neither lock nor mark, finds what the first
-- one did. One that frees the lock leaves 1, by which the first one knows if it comes after it. had is
-- how many ms of the hold were left.
local function left(ours, keep, kind, had)
  local was = not ours and (kind ~= '0' or keep > 0) and call('GET', TOMB)
  local lost = was == 'lost' or not ours and kind == '1' and was ~= '1'
  if lost then
    mark(TOMB, math.abs(keep))
  elseif keep > 0 or ours and kind == '2' then
    local word = kind ~= '0' and '1' or ours and 'lost' or was or '0' -- its holder may not know that it was broken
    call('SET', TOMB, word, 'PX', max(math.abs(keep), had + 10000))
  end
  return (ours or kind ~= '0' and not lost) and 1 or 0
end

-- Queues a waiter, or keeps its place: one that was dropped comes back with its ticket. The lock is free
-- in pttl ms, as far as one can tell, and the waiter looks again within most ms. Returns the reply.
local function join(nonce, ticket, pttl, foreign, most, slack, process, said, owner)
  local place = tonumber(call('ZSCORE', QUEUE, nonce) or 0)
  local dropped = 0
  if place == 0 then
    place = tonumber(ticket or 0)
    if place ~= 0 then dropped = 1 end
    if place == 0 then place = draw(0) end
    call('ZADD', QUEUE, num(place), nonce)
  end
  local look = pttl
  if look < 0 or look > most then look = most end
  local alive = look + tonumber(slack)
  call('HSET', WAITERS, nonce, num(ms + alive) .. ' ' .. process .. ' ' .. said .. ' ' .. owner)
  if call('PTTL', QUEUE) < alive then
    call('PEXPIRE', QUEUE, alive)
    call('PEXPIRE', WAITERS, alive)
  end
  return {'queued', num(place), pttl, foreign, dropped}
end
