-- The node's own state, and what the operations share. One call carries many operations: each has its lock
-- in KEYS and its kind and arguments in ARGV, and one reply.
--
-- KEYS  1 the node's state: a hash {run, until, began, base, promoted, c<bucket>…, s<library>}
--       2… the lock of each operation
-- ARGV  1 settings, with spaces between: database, quarantine ms, µs that a proposal may be ahead of this node's clock,
--         reservation ms, prefix of the keyspace
--       2… for each operation its kind and arguments (vote.lua, hold.lua, look.lua, gate.lua)
--
-- Of ours besides, all with a NUL byte, which no lock's name has:
--   fl\0rl:x<id> tombstone   fl\0rl:v<lock> reservation   fl\0rl:w<lock> waiters: hash nonce -> "until process"
--   fl\0rl:q<lock> their order: zset nonce -> stamp
--   fl\0rl:r<bucket> ids released last
--   fl\0rl:g<prefix> gates: hash migration -> record as JSON
--   fl\0rl:k<prefix>\0<migration> clients: hash id -> "until record"
local STATE, TOMB, RESERVED = 'fl\0rl', 'fl\0rl:x', 'fl\0rl:v'
local WAITERS, LINE, RING, GATES, CHANNEL = 'fl\0rl:w', 'fl\0rl:q', 'fl\0rl:r', 'fl\0rl:g', 'fl\0rl:p'

-- What one call has and has read so far; run.lua begins it. set is what ARGV[1] says. op is which
-- operation it does, terms are those of the last vote. What ahead.lua has read: values, by lock,
-- which are kept as they come to be, clear while there is nothing special about any lock of the
-- call, and numbers, by operation. noted: the call is counted.
local call, set, ARGV, pos, now, left, base, known, op, terms, values, clear, numbers, noted

-- The settings of a client: once for a library, and for each call of a script. Of many kinds of
-- clients the last ones' are kept.
local function settings(text)
  KINDS = KINDS + 1
  if KINDS > 100 then SET, KINDS = {}, 1 end
  local db, quarantine, ahead, reserve, prefix = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
  SET[text] = {
    db = db, quarantine = tonumber(quarantine), ahead = tonumber(ahead), reserve = reserve,
    prefix = prefix, gates = GATES .. prefix,
  }
  return SET[text]
end

-- Lua prints large numbers rounded; this does not.
local function num(n) return string.format('%.0f', n) end

-- The next n arguments of the operation.
local function args(n)
  local from = pos
  pos = pos + n
  return unpack(ARGV, from, from + n - 1)
end

-- The node's clock in µs and in ms, read once a call, and only if something needs it.
local function us()
  if not now then
    local t = call('TIME')
    now = t[1] * 1000000 + t[2]
    SEEN = now
  end
  return now
end
local function ms() return math.floor(us() / 1000) end

-- The run id of the server's process, which is a new one after a restart. Read with it: under which
-- id the server was a replica before it was promoted; nil if it never was one since it started.
local function process()
  if not RUN then
    RUN = string.match(call('INFO', 'server'), 'run_id:(%x+)')
    PROMOTED = string.match(call('INFO', 'replication'), 'master_replid2:(%x+)')
    if PROMOTED and string.match(PROMOTED, '^0*$') then PROMOTED = nil end
  end
  return RUN
end

-- Whether the data is older than the process, or another's: then votes may be missing in it.
--   run       the process that the data belongs to. Another one: a restart, FLUSHALL, a new
--             server, a replica's data.
--   count     how many calls of this library have changed something, as the data has it. The
--             library counts them in its memory too. The server drops that memory with the library,
--             whenever it loads its data anew (a full synchronisation, DEBUG RELOAD): a count in
--             the data that the memory does not have is a loss as well.
--   promoted  what process() read when the data began. A script has no memory, and this for a
--             failover and back.
local function forgot(run, count, promoted)
  if run ~= process() then return true end
  if COUNTS[set.db] ~= nil then return count ~= COUNTS[set.db] end
  if count or PROMOTED and PROMOTED ~= promoted then return true end
  if LIBRARY then COUNTS[set.db] = false end -- its first call
end

-- Writes to the node's state, and counts the call. Whatever a node must not forget comes after a note in the same call:
-- votes, renewals, numbers, gates.
local function note(...)
  if noted then return select('#', ...) > 0 and call('HSET', STATE, ...) end
  if not LIBRARY then
    noted = true
    return note(...)
  end
  local n = num(COUNTS[set.db] and COUNTS[set.db] + 1 or us())
  call('HSET', STATE, LIBRARY, n, ...)
  COUNTS[set.db], noted = n, true
end

-- The nonce of an acquisition, which the id of each of its ballots begins with.
local function nonceOf(id) return string.match(id, '^[^.]*') end

-- The terms of a vote (vote.lua), read once for those of the same.
local function agreed(text)
  if text == '' or terms and terms.text == text then return terms end
  terms = {text = text}
  terms.ttl, terms.floor, terms.stamp, terms.process, terms.gates, terms.owner =
    string.match(text, '^(%d+) (%-?%d+) (%d+) ([^%s%z]+)%z([^%z]*)%z(.*)$')
  terms.floor = tonumber(terms.floor)
  return terms
end

-- How many ms of quarantine are left; 0 when the node may vote. base is its clock at the end of the
-- quarantine: every later number is above it. The first time in a call, a bucket's counter comes
-- with it: false if it has none.
local function quarantine(bucket)
  if left then return left end
  local s = call('HMGET', STATE, 'run', 'until', 'base', 'c' .. (bucket or ''), LIBRARY or '', 'promoted')
  base = tonumber(s[3] or 0)
  if forgot(s[1], s[5], s[6]) then
    -- Other libraries begin anew as well. Not where this one's count is all that is missing: another may have begun
    -- this quarantine, and two that delete each other's counts would never end it.
    if s[5] or s[1] ~= RUN then
      for _, field in ipairs(call('HGETALL', STATE)) do
        if string.match(field, '^s%x+$') then call('HDEL', STATE, field) end
      end
    end
    COUNTS[set.db] = false -- it counts on from the clock, so that no older data has the same
    -- A value of more than 64 bytes keeps the hash from being a list, in which a counter is found by
    -- reading the others.
    note('run', RUN, 'promoted', PROMOTED or '', 'until', num(ms() + set.quarantine), 'began', num(us()), 'about',
      "a node of fencelock's redlock: what its data belongs to, and the numbers that it has given")
    left = set.quarantine
  elseif not s[2] then
    left = 0
  elseif tonumber(s[2]) > ms() then
    left = tonumber(s[2]) - ms()
    if us() < tonumber(call('HGET', STATE, 'began') or 0) then -- its clock was set back, maybe by hours
      left = set.quarantine
      note('until', num(ms() + left), 'began', num(us()))
    end
  else
    base, left = math.max(base, us()), 0
    note('base', num(base))
    call('HDEL', STATE, 'until')
  end
  return left, s[4]
end

-- Whether a floor is further ahead of the node's clock than a floor may be, an hour, and no migration has raised the
-- numbers there.
local function far(floor, bucket)
  return floor > (SEEN or 0) + 3600000000 and floor > us() + 3600000000
    and floor > math.max(base, tonumber(call('HGET', STATE, 'c' .. bucket) or 0))
end

-- The number of a vote of these terms, above its bucket's counter; base is known.
local function number(c, p, t)
  local proposed = tonumber(p)
  if proposed > (SEEN or 0) + set.ahead then proposed = math.min(proposed, us() + set.ahead) end
  local n = math.max((c or 0) + 1, proposed, base + 1, t.floor + 1)
  return n == tonumber(p) and p or num(n)
end

-- The value of a lock, and whether it is of this id. A key of another type is a table, and nobody's.
local function read(lock, id)
  local v = values and values[lock] or redis.pcall('GET', lock)
  return v, type(v) == 'string' and string.sub(v, 1, #id) == id and string.byte(v, #id + 1) == 58
end

-- The process of a waiter; nil if its time has passed.
local function waiter(lock, nonce)
  local till, process = string.match(call('HGET', WAITERS .. lock, nonce) or '', '^(%d+) (%S+)$')
  if till and tonumber(till) >= ms() then return process end
end

-- Takes a waiter out.
local function drop(lock, nonce)
  call('ZREM', LINE .. lock, nonce)
  call('HDEL', WAITERS .. lock, nonce)
end

-- Puts a waiter into the queue of a lock, where it counts as alive for so many ms. It looks at four others there at
-- most, and takes out the dead.
local function join(lock, nonce, stamp, process, alive)
  clear = false
  call('ZADD', LINE .. lock, stamp, nonce)
  call('HSET', WAITERS .. lock, nonce, num(ms() + alive) .. ' ' .. process)
  if call('PTTL', WAITERS .. lock) < alive then
    call('PEXPIRE', LINE .. lock, alive)
    call('PEXPIRE', WAITERS .. lock, alive)
  end
  local line = call('ZRANGE', LINE .. lock, 0, 63)
  for i = 1, #line, 16 do
    local other = line[(us() + i) % #line + 1]
    if not waiter(lock, other) then drop(lock, other) end
  end
end

-- Tells the first live waiter that the lock is free, and keeps others from it for a moment; tells the
-- second to look when that is over. A waiter is alive if its time has not passed and a push finds a listener.
-- The waiter self is alive, and looks by itself. One call takes out 1,000 dead waiters at the most; the waiters
-- behind them look by themselves.
local function wake(lock, self)
  clear = false
  local message, at = 'g ', 0
  for _ = 1, 1000 do
    local nonce = call('ZRANGE', LINE .. lock, at, at)[1]
    if not nonce then return end
    local process = waiter(lock, nonce)
    if not process or nonce ~= self and call('PUBLISH', CHANNEL .. process, message .. nonce) == 0 then
      drop(lock, nonce)
    elseif at == 0 then
      call('SET', RESERVED .. lock, nonce, 'PX', set.reserve)
      message, at = 'w' .. set.reserve .. ' ', 1
    else
      return
    end
  end
end

-- Takes a waiter out, and passes on what was kept for it. mine: the lock is its own, and is passed on by its release.
local function leave(lock, nonce, mine)
  if clear then return end
  drop(lock, nonce)
  if call('GET', RESERVED .. lock) == nonce then
    call('DEL', RESERVED .. lock)
    if not mine and call('EXISTS', lock) == 0 then wake(lock) end
  end
end

local ops = {}
