-- The acquire that found the key taken, the queue not empty, its own
-- tombstone, or a gate that refuses it. Keys, arguments and replies: fast.lua.
local nonce, ttl, mode, ticket, floor = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local claim, slack, process, pub, owner = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]

if redis.call('EXISTS', TOMB) == 1 then return {'gone'} end

-- A grant that found a gate of its own migration says so.
local function granted(n) return own and {'ok', n} or n end

-- Ours already: the same request again, which no gate refuses any more, or the waiter's confirmation of its claim.
local mine = value and string.sub(value, 1, 33) == nonce .. ':'
local claimed = mine and string.byte(value, -1) == 0
if mine and not (claimed and refusal) then
  local n = tonumber(string.match(value, '^%x+:(%d+):'))
  if n <= floor then n = draw(floor) end
  redis.call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner, 'PX', ttl)
  drop(nonce)
  return granted(n)
end

-- Refused: out of the queue, and the lock goes on to the next.
if refusal then
  drop(nonce)
  if claimed then redis.call('DEL', LOCK) end
  if claimed or not value then grant(pub, '', claim) end
  return refusal
end

-- Free, but others wait: the first live one gets it, whoever looks.
if not value then
  if not grant(pub, nonce, claim) then
    local n = draw(floor)
    redis.call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner, 'PX', ttl)
    drop(nonce)
    return granted(n)
  end
  value = redis.call('GET', LOCK)
end

local left = redis.call('PTTL', LOCK)
local foreign = string.match(value, '^%x+:%d+:') and 0 or 1
if mode == 't' then return {'locked', left, foreign} end

-- Queue, or keep the place: a waiter that was dropped comes back with its ticket.
local place = tonumber(redis.call('ZSCORE', QUEUE, nonce) or 0)
if place == 0 then
  place = ticket
  if place == 0 then place = draw(0) end
  redis.call('ZADD', QUEUE, num(place), nonce)
end
local look = left
if look < 0 or look > 5000 then look = 5000 end
local alive = look + slack
redis.call('HSET', WAITERS, nonce, num(ms + alive) .. ' ' .. process .. ' ' .. owner)
if redis.call('PTTL', QUEUE) < alive then
  redis.call('PEXPIRE', QUEUE, alive)
  redis.call('PEXPIRE', WAITERS, alive)
end
return {'queued', num(place), left, foreign}
