-- Releases and acquires: one, or several that go together. The uncontended ones are done here, all
-- at once and so with few commands. The rest is done one by one by what follows in the same script (script.go),
-- which defines as little as it can: a function that is defined costs as much as half a command.
--
-- KEYS  of r releases and a acquires:
--       r locks  a counters  1 version of the gates
--       r+a queues: zset nonce -> ticket  a tombstones  a locks
--       on a cluster, where one goes alone, then those that it may need besides
-- ARGV  1 r
--       2 the version of the gates that the client knows, - for none
--       3 "claim slack process pub": ms, ms, the channel's name, PUBLISH or SPUBLISH
--       of each release: "nonce:", how long to keep a tombstone in ms, or what else is to be known of it,
--         with a minus if there need be no tombstone, its kind: 1 released, 2 released again, since no
--         answer came to an earlier one, 0 abandoned
--       of each acquire: "nonce:", owner with its marks (keys.go), TTL in ms, its kind: t to try, w
--         to wait, with the number of the ask if a push may grant by it (queue.lua), and of some
--         :ticket:floor:reserve, where ticket is the one drawn before, or 0
-- Reply, of each release and acquire
--   1 released, now or before | 0 not ours
--   token, or {token, reserved} if some were asked for: granted
--   {"gone"} abandoned before | {"locked"} | {"queued", ticket, pttl, foreign, dropped}
--   {"floor", now}: further ahead than now, in µs, and an hour
--   {"gates", version, list}: not those that the client knows | {"badgate"}: no gates of ours
--   {"err", message}

-- What is no string counts as missing. calm: nobody waits for any of them, and none has a tombstone.
local values, calm, pass
local many = r + a > 1
if a > 0 and version ~= '-' then
  values = call('MGET', unpack(KEYS, 1, queues))
  calm = call('EXISTS', unpack(KEYS, queues + 1, locks)) == 0
else
  values = call('MGET', unpack(KEYS, 1, r + a))
  calm = call('EXISTS', unpack(KEYS, a > 0 and queues or queues + 1, locks)) == 0
end
local replies, rest = {}, false

-- First the releases, for they free memory, which the acquires may want.
if r > 0 then
  local free, n = {}, 0
  for i = 1, r do
    local at, value = 3 * i, values[i]
    replies[i] = value and sub(ARGV[at + 2], 1, 1) == '-' and ARGV[at + 3] == '1' and sub(value, 1, 33) == ARGV[at + 1]
      and (calm or many and call('EXISTS', KEYS[queues + i]) == 0) and 1
    if replies[i] then
      n = n + 1
      free[n] = KEYS[i]
    else
      rest = true
    end
  end
  local reply = n > 0 and redis.pcall('DEL', unpack(free))
  if type(reply) == 'table' then return refusal(reply.err) or reply end
end

if a > 0 then
  clock()
  pass = version == '-' and (calm or call('EXISTS', KEYS[queues]) == 0) or values[queues] == version
  local drawn = {}
  for i = r + 1, r + a do
    local at = asked + 4 * (i - r - 1)
    local kind, floor, reserve = ARGV[at + 4], 0, 0
    if #kind > 1 then
      floor, reserve = string.match(kind, '(%d+):(%d+)$')
      floor, reserve = tonumber(floor), tonumber(reserve)
    end
    local key, n, s = KEYS[i], us, text
    local last = drawn[key] or values[i]
    if last and (#last ~= #text or last >= text or floor >= us) then
      last = string.match(last, '^%d+$') and tonumber(last)
      n = last and max(last + 1, us, floor + 1)
      s = n and num(n)
    end
    local taken = last and pass and n < tokens and not ahead(floor)
      and (calm or many and call('EXISTS', KEYS[queues + i], KEYS[tombs + i - r]) == 0)
      and redis.pcall('SET', KEYS[locks + i - r], ARGV[at + 1] .. s .. ':' .. ARGV[at + 2], 'PX', ARGV[at + 3], 'NX')
    if taken and taken.ok then -- a refusal is told by what follows, to this one alone
      replies[i] = n
      if reserve > 0 then
        local more = max(0, min(reserve, us + 3000 - n)) -- as backend.Reserve
        replies[i], s = {n, more}, num(n + more)
      end
      drawn[key] = s
      call('SET', key, s)
    else
      replies[i], rest = false, true
    end
  end
end
if not rest then return replies end
