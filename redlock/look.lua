-- i: describes a lock. reply {value or "", 1 if it is there, pttl, live waiters} | {5} a key of another type
ops.i = function(lock)
  local value = read(lock, '')
  if type(value) == 'table' then return {5} end
  local live = 0
  for _, w in ipairs(call('HVALS', WAITERS .. lock)) do
    local till = string.match(w, '^(%d+) ')
    if till and tonumber(till) >= ms() then live = live + 1 end
  end
  return {value or '', value and 1 or 0, call('PTTL', lock), live}
end

-- s: the node's state.
-- reply {1 if it has settled, 2 if it had before, as its data tells, or 0; run id, until or "", when it or the last
--        one began, INFO of the server}
ops.s = function()
  quarantine()
  local s = call('HMGET', STATE, 'run', 'until', 'began')
  return {left == 0 and 1 or base > 0 and 2 or 0, s[1], s[2] or '', s[3] or '', call('INFO', 'server')}
end

-- f: an operator's word that no lock was forgotten: ends the quarantine that the operator's client
-- has seen, and no other.
-- args run id  until   reply 1 the node votes | 0 it is in another quarantine
ops.f = function()
  local run, till = args(2)
  if quarantine() == 0 then return 1 end
  local s = call('HMGET', STATE, 'run', 'until')
  if s[1] ~= run or s[2] ~= till then return 0 end
  base, left = math.max(base, us()), 0
  call('HDEL', STATE, 'until')
  note('base', num(base))
  return 1
end

-- m: raises every later number above a floor. args floor   reply 1 | 0 in quarantine
ops.m = function()
  local floor = tonumber(args(1))
  if quarantine() > 0 then return 0 end
  if base < floor then
    base = floor
    note('base', num(base))
  end
  return 1
end
