-- The node's own state, which every script begins with. One call carries many operations: each has its lock
-- in KEYS and its kind and arguments in ARGV, and one reply.
--
-- KEYS  1 the node's state: a hash {run, until, base, c<bucket>…}   2… the lock of each operation
-- ARGV  1 quarantine ms  2 µs that a proposal may be ahead of this node's clock  3 reservation ms
--       4 prefix of the keyspace
--       5… for each operation its kind and arguments (vote.lua, hold.lua, look.lua, gate.lua)
--
-- Of ours besides, all with a NUL byte, which no lock's name has:
--   fl\0rl:x<id> tombstone   fl\0rl:v<lock> reservation   fl\0rl:w<lock> waiters: hash nonce -> "stamp until process"
--   fl\0rl:r<bucket> ids released last
--   fl\0rl:g<prefix> gates: hash migration -> record as JSON   fl\0rl:k<prefix>\0<migration> clients: hash id -> "until record"
local STATE, pos = KEYS[1], 5
local TOMB, RESERVED, WAITERS, RING, CHANNEL = 'fl\0rl:x', 'fl\0rl:v', 'fl\0rl:w', 'fl\0rl:r', 'fl\0rl:p'
local now = redis.call('TIME')
local us = now[1] * 1000000 + now[2]
local ms = math.floor(us / 1000)

-- Lua prints large numbers rounded; this does not.
local function num(n) return string.format('%.0f', n) end

-- The next n arguments of the operation.
local function args(n)
  local from = pos
  pos = pos + n
  return unpack(ARGV, from, from + n - 1)
end

-- How many ms of quarantine are left; 0 when the node may vote. A node whose run id is not the one of its data was
-- restarted, flushed or restored, or is new: it may have forgotten votes. base is its clock at the end of
-- the quarantine: every later number is above it.
local left, base
local function quarantine()
  if left then return left end
  local run = process()
  local s = redis.call('HMGET', STATE, 'run', 'until', 'base')
  base = tonumber(s[3] or 0)
  if s[1] ~= run then
    redis.call('HSET', STATE, 'run', run, 'until', num(ms + ARGV[1]))
    left = tonumber(ARGV[1])
  elseif not s[2] then
    left = 0
  elseif tonumber(s[2]) > ms then
    left = tonumber(s[2]) - ms
  else
    base, left = math.max(base, us), 0
    redis.call('HSET', STATE, 'base', num(base))
    redis.call('HDEL', STATE, 'until')
  end
  return left
end

-- The value of a lock, and whether it is of this id. A key of another type is a table, and nobody's.
local function read(lock, id)
  local v = redis.pcall('GET', lock)
  return v, type(v) == 'string' and string.sub(v, 1, #id + 1) == id .. ':'
end

-- Tells the first live waiter that the lock is free, and keeps others from it for a moment; tells the
-- second to look when that is over. A waiter is alive if its time has not passed and a push finds a listener.
local function wake(lock)
  local all = redis.call('HGETALL', WAITERS .. lock)
  local line = {}
  for i = 1, #all, 2 do
    local stamp, till, process = string.match(all[i + 1], '^(%d+) (%d+) (%S+)$')
    if till and tonumber(till) >= ms then
      line[#line + 1] = {tonumber(stamp), all[i], process}
    else
      redis.call('HDEL', WAITERS .. lock, all[i])
    end
  end
  table.sort(line, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  local told = false
  for _, w in ipairs(line) do
    local message = told and ('w' .. ARGV[3]) or 'g'
    if redis.call('PUBLISH', CHANNEL .. w[3], message .. ' ' .. w[2]) == 0 then
      redis.call('HDEL', WAITERS .. lock, w[2])
    elseif told then
      return
    else
      redis.call('SET', RESERVED .. lock, w[2], 'PX', ARGV[3])
      told = true
    end
  end
end

-- Takes a waiter out, and passes on what was kept for it. mine: the lock is its own, and is passed on by its release.
local function leave(lock, nonce, mine)
  redis.call('HDEL', WAITERS .. lock, nonce)
  if redis.call('GET', RESERVED .. lock) == nonce then
    redis.call('DEL', RESERVED .. lock)
    if not mine and redis.call('EXISTS', lock) == 0 then wake(lock) end
  end
end

local ops = {}
