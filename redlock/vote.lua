-- v: the node's vote for an acquisition, with a number of its own. Sent again it is the same vote.
-- args   id  nonce  ttl ms  proposal  floor  bucket  stamp, or 0 not to queue  process  owner
-- reply  {0, number} vote | {1, pttl, holder's id} held | {2, ms} in quarantine | {3} abandoned before
--        | {4, pttl} kept for a waiter | {5} a key of another type
ops.v = function(lock)
  local id, nonce, ttl, p, floor, bucket, stamp, process, owner = args(9)
  if quarantine() > 0 then return {2, left} end
  local value, mine, special
  if redis.call('EXISTS', lock, TOMB .. id, RESERVED .. lock) > 0 then
    if redis.call('EXISTS', TOMB .. id) == 1 then return {3} end
    value, mine = read(lock, id)
    special = true
  end
  if type(value) == 'table' then return {5} end
  if mine then
    redis.call('PEXPIRE', lock, ttl)
    return {0, tonumber(string.match(value, ':(%d+):'))}
  end
  local reserved = special and redis.call('GET', RESERVED .. lock)
  if not value and (not reserved or reserved == nonce) then
    local c = redis.call('HGET', STATE, 'c' .. bucket)
    local n = math.max((tonumber(c or 0)) + 1, math.min(tonumber(p), us + ARGV[2]), base + 1, floor + 1)
    local s = num(n)
    redis.call('HSET', STATE, 'c' .. bucket, s)
    redis.call('SET', lock, id .. ':' .. s .. ':' .. owner, 'PX', ttl)
    if reserved then redis.call('DEL', RESERVED .. lock) end
    if stamp ~= '0' then redis.call('HDEL', WAITERS .. lock, nonce) end
    return {0, n}
  end
  local pttl = redis.call('PTTL', value and lock or RESERVED .. lock)
  if stamp ~= '0' then
    local alive = (pttl < 0 or pttl > 3000) and 5000 or pttl + 2000
    redis.call('HSET', WAITERS .. lock, nonce, stamp .. ' ' .. num(ms + alive) .. ' ' .. process)
    if redis.call('PTTL', WAITERS .. lock) < alive then redis.call('PEXPIRE', WAITERS .. lock, alive) end
  end
  if not value then return {4, pttl} end
  return {1, pttl, string.match(value, '^(%x[%x.]*):%d+:') or ''}
end

-- w: the write-back. It counts only where the lock is still ours and still has the number that this
-- client was given, or the token already.
-- args   id  number seen  token  bucket
-- reply  1 has the token now | 0 refused
ops.w = function(lock)
  local id, seen, token, bucket = args(4)
  local value, mine = read(lock, id)
  if quarantine() > 0 or not mine then return 0 end
  local n, owner = string.match(value, '^[^:]*:(%d+):(.*)$')
  if n ~= seen and n ~= token then return 0 end
  if tonumber(redis.call('HGET', STATE, 'c' .. bucket) or 0) < tonumber(token) then
    redis.call('HSET', STATE, 'c' .. bucket, token)
  end
  redis.call('SET', lock, id .. ':' .. token .. ':' .. owner, 'KEEPTTL')
  return 1
end
