-- Gates of migrations, and what they need besides.

-- Whether two replies are the same.
local function same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- The gates of the keyspace, read once for all operations: false for what is no gate. What they say is remembered
-- by a library as long as the records are the same.
local function gates()
  if known ~= nil then return known end
  local all = redis.pcall('HGETALL', set.gates)
  local old = set.read
  if not all.err and old and same(all, old) then
    known = old.known
    return known
  end
  known = {}
  if all.err then known = false end
  for i = 1, #all, 2 do
    local ok, g = pcall(cjson.decode, all[i + 1])
    ok = ok and type(g) == 'table' and type(g.epoch) == 'number' and (g.state == 'open' or g.state == 'both')
      and type(g.scope) == 'table' and #g.scope > 0
    for _, p in ipairs(ok and g.scope or {}) do ok = ok and type(p) == 'table' and type(p.match) == 'string' end
    if not ok then
      known = false
      break
    end
    g.move = all[i]
    known[#known + 1] = g
  end
  set.read = known and #all > 0 and all or nil
  all.known = known
  return known
end

-- Whether any of these three keys exists. A keyspace without gates is found to be one on the way.
local function there(a, b, c)
  if known == nil and set.read then gates() end
  if known ~= nil then return call('EXISTS', a, b, c) > 0 end
  if call('EXISTS', a, b, c, set.gates) > 0 then return true end
  known = {}
  return false
end

-- What the gates say of a vote, as backend.Admit does: a refusal, or whether there is one of its own migration.
local function admit(lock, mark)
  local all = gates()
  if not all then return {7} end
  if #all == 0 and string.sub(mark, 1, 3) ~= 'to ' then return end
  local name = string.sub(lock, #set.prefix + 1)
  local phase, move = string.match(mark, '^(%a+) (.*)$')
  local own
  for _, g in ipairs(all) do
    local moves
    for _, p in ipairs(g.scope) do
      local m = p.match
      if m == name or (string.sub(m, -1) == '*' and string.sub(name, 1, #m - 1) == string.sub(m, 1, -2)) then
        moves = not p.stays
        break
      end
    end
    if moves then
      if g.move == move then own = 1 end
      if g.state == 'both' and (phase ~= 'both' or g.move ~= move) then return {6, g.move, num(g.epoch)} end
    end
  end
  if phase == 'to' and not own then return {6, move, '0'} end
  return nil, own
end

-- g: the gates. reply {migration, record, …} | {5} a key of another type
ops.g = function()
  local all = redis.pcall('HGETALL', set.gates)
  return all.err and {5} or all
end

-- o: writes a gate, if it is there what the writer expects.
-- args   migration  record  its epoch  the epoch expected: 0 for none, -1 for any lower one
-- reply  1 it stands there now | 0 another does | -1 what stands there is no gate
ops.o = function()
  local move, record, epoch, was = args(4)
  local old = redis.pcall('HGET', set.gates, move)
  if old == record then return 1 end
  local there = 0
  if old then
    local ok, g = pcall(cjson.decode, old)
    if not ok or type(g) ~= 'table' or type(g.epoch) ~= 'number' then return -1 end
    there = g.epoch
  end
  if there ~= tonumber(was) and (was ~= '-1' or there >= tonumber(epoch)) then return 0 end
  call('HSET', set.gates, move, record)
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
  if tonumber(call('HGET', STATE, 'c' .. bucket) or 0) < tonumber(floor) then
    call('HSET', STATE, 'c' .. bucket, floor)
  end
  return 1
end

-- k: forgets the clients of a migration that have not reported for long, takes in one report if there is one.
-- args   migration  id, or "" for no report  record, or "" to delete  ms to keep it
-- reply  {record, …} of those that are left
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
    if till and tonumber(till) > ms() then live[#live + 1] = text else call('HDEL', key, all[i]) end
  end
  return live
end
