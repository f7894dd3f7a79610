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
-- args   id  nonce  bucket  ms to keep a tombstone, or 0  "1" remember the id as released  "1" leave the waiters
-- reply  1 released, now or before | 0 not ours
ops.r = function(lock)
  local id, nonce, bucket, keep, remember, leaves = args(6)
  local _, mine = read(lock, id)
  if keep ~= '0' then call('SET', TOMB .. id, '1', 'PX', keep) end
  if leaves == '1' then leave(lock, nonce, mine) end
  if mine then
    call('DEL', lock)
    if remember == '1' then
      local ring = RING .. bucket
      if call('RPUSH', ring, id) > 160 then call('LTRIM', ring, '-128', '-1') end
      call('PEXPIRE', ring, '60000')
    end
    if call('EXISTS', WAITERS .. lock) == 1 then wake(lock) end
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
