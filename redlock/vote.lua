-- v: the node's vote for an acquisition, with a number of its own. Sent again it is the same vote.
-- args   id  proposal  bucket  terms: "ttl ms, floor, stamp or 0 not to queue, process", NUL,
--        the gates that the request was judged by (gate.lua), NUL, owner, marked (keys.go);
--        or "", the terms of the vote before in the call
-- reply  {0, number} vote | {1, pttl, holder's id} held | {2, ms} in quarantine
--        | {3} abandoned before | {4, pttl} kept for a waiter | {5} a key of another type
--        | {6, migration, record, …} the gates, which are others | {7} the gates' key is of
--        another type | {8, µs} the floor is too far ahead of this clock
ops.v = function(lock)
  local id, p, bucket, text = args(4)
  local t, nonce = agreed(text), nonceOf(id)
  local wait, c = quarantine(bucket)
  if wait > 0 then return {2, wait} end
  if far(t.floor, bucket) then return {8, us()} end
  local value, mine, special
  if not (clear and not values[lock]) and there(lock, TOMB .. id, RESERVED .. lock) then
    if call('EXISTS', TOMB .. id) == 1 then return {3} end
    value, mine = read(lock, id)
    special = true
  end
  if type(value) == 'table' then return {5} end
  if mine then
    note()
    call('PEXPIRE', lock, t.ttl)
    return {0, tonumber(string.match(value, ':(%d+):'))}
  end
  if not judged(t.gates) then return known.err and {7} or {6, unpack(known)} end
  local reserved = special and call('GET', RESERVED .. lock)
  if not value and (not reserved or reserved == nonce) then
    local s = numbers and numbers[op]
    if not s then
      if c == nil then c = call('HGET', STATE, 'c' .. bucket) end
      s = number(c, p, t)
      note('c' .. bucket, s)
    end
    value = id .. ':' .. s .. ':' .. t.owner
    -- NX: a key that reads as none, but is of another type
    if not call('SET', lock, value, 'PX', t.ttl, 'NX') then return {5} end
    if values then values[lock] = value end
    if reserved then call('DEL', RESERVED .. lock) end
    if t.stamp ~= '0' and not clear then drop(lock, nonce) end
    return {0, tonumber(s)}
  end
  local pttl = call('PTTL', value and lock or RESERVED .. lock)
  if t.stamp ~= '0' then
    join(lock, nonce, t.stamp, t.process, (pttl < 0 or pttl > 3000) and 5000 or pttl + 2000)
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
  if tonumber(call('HGET', STATE, 'c' .. bucket) or 0) < tonumber(token) then note('c' .. bucket, token) end
  call('SET', lock, id .. ':' .. token .. ':' .. owner, 'KEEPTTL')
  return 1
end
