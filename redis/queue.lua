-- What acquire.lua, release.lua and break.lua share. The queue's order is the
-- ticket, drawn from the counter. A waiter is alive if its "until" has not passed and a
-- push to its process finds a listener.
--
-- KEYS as in fast.lua. pub is PUBLISH, or SPUBLISH on a cluster, where a plain PUBLISH does
-- not count the listeners of other nodes.
local LOCK, QUEUE, WAITERS, COUNTER, TOMB = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = redis.call('TIME')
local us = now[1] * 1000000 + now[2]
local ms = math.floor(us / 1000)

-- Lua prints large numbers rounded; this does not.
local function num(n) return string.format('%.0f', n) end

-- The channel of a process: one for all slots, or with sharded pub/sub one in each slot.
local function channel(pub, process)
  if pub == 'SPUBLISH' then return string.sub(COUNTER, 1, -2) .. 'p' .. process end
  return 'fl\0p' .. process
end

-- The next number of the slot: a fencing token or a ticket. On every grant it is
-- at least the server's clock, for a promoted replica does not know that its counter is old.
local function draw(floor)
  local n = math.max(tonumber(redis.call('GET', COUNTER) or 0) + 1, us, floor + 1)
  redis.call('SET', COUNTER, num(n))
  return n
end

local function drop(nonce)
  redis.call('ZREM', QUEUE, nonce)
  redis.call('HDEL', WAITERS, nonce)
end

local function head() return redis.call('ZRANGE', QUEUE, 0, 0)[1] end

-- Sends a message to a waiter; returns its owner if it lives.
local function tell(pub, nonce, message)
  local w = redis.call('HGET', WAITERS, nonce)
  if not w then return nil end
  local till, process, owner = string.match(w, '^(%d+) (%S+) (.*)$')
  if not till or tonumber(till) < ms then return nil end
  if redis.call(pub, channel(pub, process), message .. ' ' .. nonce) == 0 then return nil end
  return owner
end

-- Hands the free lock to the first live waiter. The grant is a claim, marked by a NUL at the end: it lasts
-- for the TTL only once the waiter has sent its own acquire again, which the gates may refuse. The waiter after it is told to look
-- when the claim is over. Stops at the waiter self, who takes the lock himself.
local function grant(pub, self, claim)
  local h = head()
  while h and h ~= self do
    local owner = tell(pub, h, 'g')
    drop(h)
    if owner then
      redis.call('SET', LOCK, h .. ':' .. num(draw(0)) .. ':' .. owner .. '\0', 'PX', claim)
      h = head()
      while h and not tell(pub, h, 'w' .. claim) do
        drop(h)
        h = head()
      end
      return true
    end
    h = head()
  end
  return false
end
