-- Gates of migrations, and what they need besides.

-- Whether these are the gates of the keyspace: their records, in any order, with a comma between; '' for none. nil
-- where something else stands there. known: they are read, once a call.
local function judged(by)
  known = known or redis.pcall('HGETALL', set.gates)
  if known.err then return nil end
  local size = 0
  for i = 2, #known, 2 do
    if not string.find(by, known[i], 1, true) then return false end
    size = size + #known[i] + 1
  end
  return size == (by == '' and 0 or #by + 1)
end

-- Whether any of these three keys exists. A keyspace without gates is found to be one on the way.
local function there(a, b, c)
  if known then return call('EXISTS', a, b, c) > 0 end
  if call('EXISTS', a, b, c, set.gates) > 0 then return true end
  known = {}
  return false
end

-- g: the gates. reply {migration, record, …} | {5} a key of another type
ops.g = function()
  local all = redis.pcall('HGETALL', set.gates)
  return all.err and {5} or all
end

-- o: writes a gate, if what stands there is what the writer expects.
-- args   migration  record, or "" to delete it  the record expected, "" for none, * for any
-- reply  1 it stands there now | 0 another does | {5} a key of another type
ops.o = function()
  local move, record, was = args(3)
  local old = redis.pcall('HGET', set.gates, move)
  if type(old) == 'table' then return {5} end
  old = old or ''
  if old == record then return 1 end
  if was ~= '*' and was ~= old then return 0 end
  quarantine() -- which a gate does not wait for
  note()
  if record == '' then call('HDEL', set.gates, move) else call('HSET', set.gates, move, record) end
  known = nil
  return 1
end

-- n: a number that nothing of this node exceeds. reply number | 0 in quarantine
ops.n = function()
  if quarantine() > 0 then return 0 end
  local top = math.max(us(), base)
  local all = call('HGETALL', STATE)
  for i = 1, #all, 2 do
    if string.match(all[i], '^c%d') then top = math.max(top, tonumber(all[i + 1])) end
  end
  return top
end

-- h: raises every later number of the name above a floor, if the lock is ours and was not taken again since the grant.
-- args   id  token  bucket  floor
-- reply  1 | 0 not ours | -1 in quarantine
ops.h = function(lock)
  local id, token, bucket, floor = args(4)
  local value, mine = read(lock, id)
  if not mine or tonumber(string.match(value, ':(%d+):')) > tonumber(token) then return 0 end
  if quarantine() > 0 then return -1 end
  if tonumber(call('HGET', STATE, 'c' .. bucket) or 0) < tonumber(floor) then note('c' .. bucket, floor) end
  return 1
end

-- k: forgets the clients of a migration that have not reported for long, takes in one report if there is one.
-- args   migration  id, or "" for no report  record, or "" to delete  ms to keep it
-- reply  {id, record, …} of those that are left
ops.k = function()
  local move, id, record, keep = args(4)
  local key = 'fl\0rl:k' .. set.prefix .. '\0' .. move
  if id ~= '' and record == '' then
    call('HDEL', key, id)
  elseif id ~= '' then
    call('HSET', key, id, num(ms() + keep) .. ' ' .. record)
    if call('PTTL', key) < tonumber(keep) then call('PEXPIRE', key, keep) end
  end
  local all, live = call('HGETALL', key), {}
  for i = 1, #all, 2 do
    local till, text = string.match(all[i + 1], '^(%d+) (.*)$')
    if till and tonumber(till) > ms() then
      live[#live + 1] = all[i]
      live[#live + 1] = text
    else
      call('HDEL', key, all[i])
    end
  end
  return live
end
