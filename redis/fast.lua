-- The uncontended acquire: the key is free, nobody waits, the request was not
-- abandoned. Everything else is below, in queue.lua and acquire.lua, which follow in the same script.
--
-- KEYS  1 lock: "nonce:token:owner" PX    2 queue: zset nonce -> ticket
--       3 waiters: hash nonce -> "until process owner"
--       4 counter of the slot             5 tombstone of this nonce
--       6 gates: hash migration -> record as JSON
-- ARGV  1 nonce  2 ttl ms  3 "t" try or "w" wait  4 ticket drawn before, or 0  5 floor
--       6 claim ms  7 slack ms  8 process  9 PUBLISH or SPUBLISH  10 owner, marked (keys.go)
--       11 phase  12 migration; both are missing for a client that knows of none
-- Reply token: granted | {"ok", token}: granted, and there is a gate of the request's own migration for the name
--       | {"gone"} abandoned before | {"locked", pttl, foreign} | {"queued", ticket, pttl, foreign}
--       | {"gate", migration, epoch}: refused | {"badgate"}: what the gates' key holds is no gate
local value = redis.call('GET', KEYS[1])
local clear = not value and redis.call('EXISTS', KEYS[2], KEYS[5], KEYS[6]) == 0 and ARGV[11] ~= 'to'
local refusal, own
if not clear then
  -- What the gates say of the request, as backend.Admit does.
  local function gates()
    local phase, move = ARGV[11], ARGV[12]
    local name = string.sub(KEYS[1], #string.match(KEYS[6], '}g(.*)$') + 1)
    local all = redis.pcall('HGETALL', KEYS[6])
    if all.err then return {'badgate'} end
    for i = 1, #all, 2 do
      local ok, g = pcall(cjson.decode, all[i + 1])
      if not ok or type(g) ~= 'table' or type(g.epoch) ~= 'number' or (g.state ~= 'open' and g.state ~= 'both')
        or type(g.scope) ~= 'table' or #g.scope == 0 then return {'badgate'} end
      local moves
      for _, p in ipairs(g.scope) do
        local m = type(p) == 'table' and p.match
        if type(m) ~= 'string' then return {'badgate'} end
        if m == name or (string.sub(m, -1) == '*' and string.sub(name, 1, #m - 1) == string.sub(m, 1, -2)) then
          moves = not p.stays
          break
        end
      end
      if moves then
        own = own or all[i] == move
        if g.state == 'both' and (phase ~= 'both' or all[i] ~= move) then
          return {'gate', all[i], string.format('%.0f', g.epoch)}
        end
      end
    end
    if phase == 'to' and not own then return {'gate', move, '0'} end
  end
  refusal = gates()
  clear = not value and not refusal and redis.call('EXISTS', KEYS[2], KEYS[5]) == 0
end
if clear then
  local t = redis.call('TIME')
  local n = math.max(tonumber(redis.call('GET', KEYS[4]) or 0) + 1, t[1] * 1000000 + t[2], ARGV[5] + 1)
  local s = string.format('%.0f', n)
  redis.call('SET', KEYS[4], s)
  redis.call('SET', KEYS[1], ARGV[1] .. ':' .. s .. ':' .. ARGV[10], 'PX', ARGV[2])
  return own and {'ok', n} or n
end
