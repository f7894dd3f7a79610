-- The queue of a lock: what acquire.lua, release.lua, share.lua and break.lua have in common. Its order is
-- the ticket, drawn from the counter. A waiter is "until process said owner", and alive if its "until"
-- has not passed and a push to its process finds a listener. What it has said is its last ask and the
-- version of the gates that it was judged by, "ask/version", or "-" where no push may grant. A reader
-- or a permit has its mode and its limit before that, "r0:" or "p3:".
local LOCK, QUEUE, WAITERS, COUNTER, TOMB, GATES
local function of(lock, base, nonce)
  LOCK, QUEUE, WAITERS = lock, base .. 'q' .. lock, base .. 'm' .. lock
  COUNTER, TOMB = base .. 'c', base .. 'x' .. nonce
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

-- Whether the gates have this version, - for none.
local function judged(version)
  local v = redis.pcall('GET', GATES)
  return type(v) ~= 'table' and (v or '-') == version
end

-- The channel of a waiter's process, what the waiter has said, and its owner; nil if it does not live. A process
-- has one channel for all slots, or with sharded pub/sub one in each slot.
local function waiter(pub, nonce)
  local entry = call('HGET', WAITERS, nonce) or ''
  local till, process, said, owner = string.match(entry, '^(%d+) (%S+) (%S+) (.*)$')
  if not till or tonumber(till) < ms then return nil end
  local to = (pub == 'SPUBLISH' and sub(COUNTER, 1, -2) or 'fl\0') .. 'p' .. process
  -- PUBLISH also counts listeners to every channel; a shard's channels have none, for they know no pattern. For a
  -- user without the right to PUBSUB only a push tells.
  if pub == 'PUBLISH' and redis.pcall('PUBSUB', 'NUMSUB', to)[2] == 0 then return nil end
  return to, said, owner
end
