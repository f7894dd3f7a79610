-- e: renews. Compares and sets the expiry; never creates.
-- args id  ttl ms   reply 1 renewed | 0 not ours | -1 ours, but the node is in quarantine
ops.e = function(lock)
  local id, ttl = args(2)
  local _, mine = read(lock, id)
  if not mine then return 0 end
  if quarantine() > 0 then return -1 end
  note()
  return call('PEXPIRE', lock, ttl)
end

-- a: votes again for a lock that a majority of the others still has: this node forgot it, or never
-- voted. It takes nobody's place, and comes after no release and no Break.
-- args id  token  bucket  ttl ms  owner, marked   reply 1 it is here | 0 it is not
ops.a = function(lock)
  local id, token, bucket, ttl, owner = args(5)
  if quarantine() > 0 or call('EXISTS', lock, TOMB .. id, RESERVED .. lock) > 0 then return 0 end
  local c = tonumber(call('HGET', STATE, 'c' .. bucket) or 0)
  note('c' .. bucket, num(math.max(c, tonumber(token))))
  call('SET', lock, id .. ':' .. token .. ':' .. owner, 'PX', ttl)
  return 1
end

-- c: looks whether it is ours. args id   reply 1 | 0
ops.c = function(lock)
  local id = args(1)
  local _, mine = read(lock, id)
  return mine and 1 or 0
end

-- r: releases or undoes.
-- args   id  bucket  how: "ms to keep a tombstone, or 0; remember the id as released: 0, 1, or 2, which was sent
--        before; leave the waiters: 1 or 0"; a waiter that comes back after split votes adds " stamp
--        process", so that every node keeps the lock for the same one; or "", which is "0 1 0"
-- reply  1 released, now or before | 0 not ours | -2 not ours, and it may be among the releases that were dropped
ops.r = function(lock)
  local id, bucket, how = args(3)
  local keep, remember, leaves, stamp, process = '0', '1', '0', '', ''
  if how ~= '' then keep, remember, leaves, stamp, process = string.match(how, '^(%d+) (%d) (%d) ?(%d*) ?(%S*)$') end
  local ring = RING .. bucket
  local _, mine = read(lock, id)
  if mine then
    call('DEL', lock) -- first: a node without memory still deletes, and then it writes too
    if values then values[lock] = nil end
  end
  if keep ~= '0' then
    call('SET', TOMB .. id, '1', 'PX', keep)
    clear = false
  end
  if leaves == '1' then leave(lock, nonceOf(id), mine) end
  if mine then
    if remember ~= '0' then
      local size = call('RPUSH', ring, id)
      if size > 160 then
        call('LTRIM', ring, '-128', '-1')
        call('RPUSH', ring, '-') -- some were dropped
      end
      -- A minute from now, at the least: what a library knows to be set for longer is left as it is.
      local due, which = us(), set.db .. ring
      if size == 1 or due > (RINGS[which] or 0) then
        call('PEXPIRE', ring, '120000')
        RINGS[which] = due + 60000000
      end
    end
    -- It asks again sooner than that, unless it has left: by another connection, that may have come before this.
    if stamp ~= '' then join(lock, nonceOf(id), stamp, process, 500) end
    if not clear and call('EXISTS', WAITERS .. lock) == 1 then wake(lock, nonceOf(id)) end
    return 1
  end
  if remember ~= '0' and call('LPOS', ring, id) then return 1 end
  return remember == '2' and call('LPOS', ring, '-') and -2 or 0
end

-- b: frees the lock if one of these holds it, and refuses votes for them from now on, also where it has none. A late
-- copy frees the lock of no later holder, except of a stranger with the same value.
-- args ids, each between spaces, for a stranger - and the SHA-1 of its value   reply 1 | {5} a key of another type
ops.b = function(lock)
  local ids = args(1)
  local value = read(lock, '')
  if type(value) == 'table' then return {5} end
  local function named(id) return string.find(ids, ' ' .. id .. ' ', 1, true) end
  local theirs, left = value and (named(string.match(value, '^(%x[%x.]*):%d+:') or '') or
    named('-' .. redis.sha1hex(value))), 0
  if theirs then left = math.max(call('PTTL', lock), 0) end
  -- First: a node without memory still deletes, and then it writes too.
  if theirs or not value then call('DEL', lock) end
  if values then values[lock] = nil end
  for each in string.gmatch(ids, ' (%x[%x.]+)') do call('SET', TOMB .. each, '1', 'PX', left + 10000) end
  clear = false
  if theirs then wake(lock) end
  return 1
end
