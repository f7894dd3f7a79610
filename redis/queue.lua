-- The queue of a lock: what acquire.lua, release.lua and break.lua share. Its order is the ticket,
-- drawn from the counter. A waiter is "until process said owner", and alive if its "until" has not
-- passed and a push to its process finds a listener.
local LOCK, QUEUE, WAITERS, COUNTER, TOMB, GATES
local function of(lock, base, nonce)
  LOCK, QUEUE, WAITERS = lock, base .. 'q' .. lock, base .. 'm' .. lock
  COUNTER, TOMB = base .. 'c', base .. 'x' .. nonce
end

-- The channel of a process: one for all slots, or with sharded pub/sub one in each slot.
local function channel(pub, process)
  if pub == 'SPUBLISH' then return sub(COUNTER, 1, -2) .. 'p' .. process end
  return 'fl\0p' .. process
end

-- The next number of the slot: a fencing token or a ticket. On every grant it is
-- at least the server's clock, for a promoted replica does not know that its counter is old.
local function draw(floor)
  local n = max(tonumber(call('GET', COUNTER) or 0) + 1, us, floor + 1)
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

-- The channel of a waiter, what it has said, and its owner; nil if it does not live.
local function waiter(pub, nonce)
  local till, process, said, owner =
    string.match(call('HGET', WAITERS, nonce) or '', '^(%d+) (%S+) (%S+) (.*)$')
  if not till or tonumber(till) < ms then return nil end
  local to = channel(pub, process)
  -- PUBLISH counts those too who listen to every channel. To a shard's nobody can by a pattern. A
  -- user without the right to PUBSUB has the count of PUBLISH alone.
  if pub == 'PUBLISH' and redis.pcall('PUBSUB', 'NUMSUB', to)[2] == 0 then return nil end
  return to, said, owner
end

-- Leaves a mark that the lock was taken away from the nonce whose tombstone this is. Without memory
-- for it a release that is sent again can take that for its own doing, which is no reason to fail.
local function mark(tomb, keep)
  local reply = redis.pcall('SET', tomb, 'lost', 'PX', max(tonumber(keep), 60000))
  if reply.err and not string.find(reply.err, 'OOM', 1, true) then error(reply) end
end

-- Hands the free lock to the first live waiter, for as long as a claim lasts. If the waiter has said
-- by which of its asks it takes that, and the gates are those that it was judged by then, it holds
-- the lock from now on, and hears so. Otherwise it must send its acquire again, which the gates may
-- refuse; a NUL at the end tells such a claim. The waiter after it is told to look when the time is
-- over. Stops at the waiter self, who takes the lock himself.
local function grant(pub, self, claim)
  local h = head()
  while h and h ~= self do
    local to, said, owner = waiter(pub, h)
    local n, word, mark = to and num(draw(0)), 'g', '\0'
    local ask, version = string.match(said or '', '^(%d+)/(%S+)$')
    if ask and judged(version) then word, mark = 'h' .. ask .. ':' .. n, '' end
    drop(h)
    if to and call(pub, to, word .. ' ' .. h) > 0 then
      call('SET', LOCK, h .. ':' .. n .. ':' .. owner .. mark, 'PX', claim)
      h = head()
      while h do
        to = waiter(pub, h)
        if to and call(pub, to, 'w' .. claim .. ' ' .. h) > 0 then break end
        drop(h)
        h = head()
      end
      return true
    end
    h = head()
  end
  return false
end
