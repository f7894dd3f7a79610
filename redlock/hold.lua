-- e: renews. Compares and sets the expiry; never creates.
-- args id  ttl ms   reply 1 renewed | 0 not ours | -1 ours, but the node is in quarantine
ops.e = function(lock)
  local id, ttl = args(2)
  local _, mine = read(lock, id)
  if not mine then return 0 end
  if quarantine() > 0 then return -1 end
  return call('PEXPIRE', lock, ttl)
end

-- c: looks whether it is ours. args id   reply 1 | 0
ops.c = function(lock)
  local id = args(1)
  local _, mine = read(lock, id)
  return mine and 1 or 0
end

-- r: releases or undoes.
-- args   id  bucket  how: "ms to keep a tombstone, or 0, and 1 or 0: remember the id as released, leave the waiters"; or "", which is "0 1 0"
-- reply  1 released, now or before | 0 not ours
ops.r = function(lock)
  local id, bucket, how = args(3)
  local keep, remember, leaves = '0', '1', '0'
  if how ~= '' then keep, remember, leaves = string.match(how, '^(%d+) (%d) (%d)$') end
  local _, mine = read(lock, id)
  if keep ~= '0' then
    call('SET', TOMB .. id, '1', 'PX', keep)
    clear = false
  end
  if leaves == '1' then leave(lock, nonceOf(id), mine) end
  if mine then
    call('DEL', lock)
    if values then values[lock] = nil end
    if remember == '1' then
      local ring = RING .. bucket
      local size = call('RPUSH', ring, id)
      if size > 160 then call('LTRIM', ring, '-128', '-1') end
      -- A minute from now, at the least: what a library knows to be set for longer is left as it is.
      local due = us()
      if size == 1 or due > (RINGS[bucket] or 0) then
        call('PEXPIRE', ring, '120000')
        RINGS[bucket] = due + 60000000
      end
    end
    if not clear and call('EXISTS', WAITERS .. lock) == 1 then wake(lock) end
    return 1
  end
  if remember == '1' and call('LPOS', RING .. bucket, id) then return 1 end
  return 0
end

-- b: frees the lock whoever holds it. reply 1 | {5} a key of another type
ops.b = function(lock)
  if type((read(lock, ''))) == 'table' then return {5} end
  if call('DEL', lock) == 1 then wake(lock) end
  return 1
end
