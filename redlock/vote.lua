-- v: the node's vote for an acquisition, with a number of its own. Sent again it is the same vote.
-- args   id  nonce  ttl ms  proposal  floor  bucket  stamp, or 0 not to queue  process  owner, marked (keys.go)
--        "phase migration", or "" for a client that knows of none
-- reply  {0, number} vote | {0, number, 1} vote, and there is a gate of its own migration for the name | {1, pttl, holder's id} held | {2, ms} in quarantine | {3} abandoned before
--        | {4, pttl} kept for a waiter | {5} a key of another type
--        | {6, migration, epoch} refused by a gate | {7} what the gates' key holds is no gate
ops.v = function(lock)
  local id, nonce, ttl, p, floor, bucket, stamp, process, owner, mark = args(10)
  local wait, c = quarantine(bucket)
  if wait > 0 then return {2, wait} end
  local value, mine, special
  if there(lock, TOMB .. id, RESERVED .. lock) then
    if call('EXISTS', TOMB .. id) == 1 then return {3} end
    value, mine = read(lock, id)
    special = true
  end
  if type(value) == 'table' then return {5} end
  if mine then
    call('PEXPIRE', lock, ttl)
    return {0, tonumber(string.match(value, ':(%d+):'))}
  end
  local refusal, own = admit(lock, mark)
  if refusal then
    leave(lock, nonce)
    return refusal
  end
  local reserved = special and call('GET', RESERVED .. lock)
  if not value and (not reserved or reserved == nonce) then
    if c == nil then c = call('HGET', STATE, 'c' .. bucket) end
    local proposed = tonumber(p)
    if proposed > (SEEN or 0) + set.ahead then proposed = math.min(proposed, us() + set.ahead) end
    local n = math.max((c or 0) + 1, proposed, base + 1, floor + 1)
    local s = n == tonumber(p) and p or num(n)
    call('HSET', STATE, 'c' .. bucket, s)
    call('SET', lock, id .. ':' .. s .. ':' .. owner, 'PX', ttl)
    if reserved then call('DEL', RESERVED .. lock) end
    if stamp ~= '0' then call('HDEL', WAITERS .. lock, nonce) end
    return {0, n, own}
  end
  local pttl = call('PTTL', value and lock or RESERVED .. lock)
  if stamp ~= '0' then
    local alive = (pttl < 0 or pttl > 3000) and 5000 or pttl + 2000
    call('HSET', WAITERS .. lock, nonce, stamp .. ' ' .. num(ms() + alive) .. ' ' .. process)
    if call('PTTL', WAITERS .. lock) < alive then call('PEXPIRE', WAITERS .. lock, alive) end
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
  if tonumber(call('HGET', STATE, 'c' .. bucket) or 0) < tonumber(token) then
    call('HSET', STATE, 'c' .. bucket, token)
  end
  call('SET', lock, id .. ':' .. token .. ':' .. owner, 'KEEPTTL')
  return 1
end
