-- The acquire that found the key taken, the queue not empty, its own
-- tombstone, gates that it does not know or that refuse it, or no counter yet. Keys, arguments and replies: fast.lua.
local nonce, ttl, floor, owner = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local refused, known = string.match(ARGV[5], '^(!?)(.*)$')
local mode, ticket, claim, slack, process, pub = string.match(ARGV[6], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')

if redis.call('EXISTS', TOMB) == 1 then return {'gone'} end

-- The lock is the request's, with the token n. What follows n is free for it up to where the counter is moved: all that was
-- drawn since n are tickets, and tokens of other names.
local function granted(n)
  if n <= floor then n = draw(floor) end
  redis.call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner, 'PX', ttl)
  drop(nonce)
  if not ARGV[7] then return n end
  local r = math.max(0, math.min(ARGV[7], us + 3000 - n))
  if r > 0 and tonumber(redis.call('GET', COUNTER) or 0) < n + r then redis.call('SET', COUNTER, num(n + r)) end
  return {n, r}
end

-- Ours already: the same request again, which no gate refuses any more, or the waiter's confirmation of its claim.
local value = redis.call('GET', LOCK)
local mine = value and string.sub(value, 1, 33) == nonce .. ':'
local claimed = mine and string.byte(value, -1) == 0
local n = mine and tonumber(string.match(value, '^%x+:(%d+):'))
if mine and not claimed then return granted(n) end

local gates = redis.pcall('GET', KEYS[6])
if type(gates) == 'table' then return {'badgate'} end
if (gates or '') ~= known then return {'gates'} end

-- Refused: out of the queue, and the lock goes on to the next.
if refused ~= '' then
  drop(nonce)
  if claimed then redis.call('DEL', LOCK) end
  if claimed or not value then grant(pub, '', claim) end
  return {'refused'}
end
if claimed then return granted(n) end

-- Free, but others wait: the first live one gets it, whoever looks.
if not value then
  if not grant(pub, nonce, claim) then return granted(draw(floor)) end
  value = redis.call('GET', LOCK)
end
if mode == 't' then return {'locked'} end

-- Queue, or keep the place: a waiter that was dropped comes back with its ticket.
local left = redis.call('PTTL', LOCK)
local foreign = string.match(value, '^%x+:%d+:') and 0 or 1
local place = tonumber(redis.call('ZSCORE', QUEUE, nonce) or 0)
if place == 0 then
  place = tonumber(ticket)
  if place == 0 then place = draw(0) end
  redis.call('ZADD', QUEUE, num(place), nonce)
end
local look = left
if look < 0 or look > 5000 then look = 5000 end
local alive = look + tonumber(slack)
redis.call('HSET', WAITERS, nonce, num(ms + alive) .. ' ' .. process .. ' ' .. owner)
if redis.call('PTTL', QUEUE) < alive then
  redis.call('PEXPIRE', QUEUE, alive)
  redis.call('PEXPIRE', WAITERS, alive)
end
return {'queued', num(place), left, foreign}
