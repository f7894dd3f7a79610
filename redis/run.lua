-- Releases and acquires: one, or several that go together. The uncontended ones are done here, all at once and so with few commands; the
-- rest one by one in queue.lua, acquire.lua, release.lua and rest.lua, which follow in the same script. Follows clock.lua.
--
-- KEYS  of r releases and a acquires: r locks  a counters  1 version of the gates (gate.lua), if there are acquires; missing where there are none
--       r+a queues: zset nonce -> ticket  a tombstones  a locks; on a cluster, where one goes alone, then those that it may need besides
-- ARGV  1 ring of the nonces that this process released last, "" for no releases
--       2 "version ttl kind owner" of the acquires, "" for none: the version of the gates as the client knows them, - for none, with ! in front: they
--         refuse the requests; ms; t to try, or t or w:ticket:floor:reserve: w to wait, the ticket drawn before, or 0, how many tokens
--         to reserve; marked (keys.go)
--       3 "keep remember claim slack process pub": ms to keep a tombstone, or 0, and 1 to remember the nonce as released or 0, of the
--         releases; ms; ms; PUBLISH or SPUBLISH
--       4 and more: "nonce:" of each release and acquire
-- Reply, of each release and acquire
--   1 released, now or before | 0 not ours
--   token, or {token, reserved} if some were asked for: granted | {"gone"} abandoned before | {"locked"} | {"queued", ticket, pttl, foreign}
--   | {"gates"}: not those that the client knows | {"refused"} by them | {"badgate"}: no version of ours
--   {"err", message}
local a, r = 0, #ARGV - 3
if ARGV[1] == '' then
  a, r = r, 0
elseif ARGV[2] ~= '' then
  a = (#KEYS - 1) / 2 - r
  r = r - a
end
local queues = r > 0 and a == 0 and r or r + a + 1 -- what is before them
local tombs, locks = queues + r + a, queues + r + 2 * a
local version, ttl, kind, owner = string.match(ARGV[2], '^(%S+) (%d+) (%S+) (.*)$')

-- What is no string counts as missing.
local values, calm
if a > 0 and version ~= '-' then
  values = call('MGET', unpack(KEYS, 1, queues))
  calm = call('EXISTS', unpack(KEYS, queues + 1, locks)) == 0
else
  values = call('MGET', unpack(KEYS, 1, r + a))
  calm = call('EXISTS', unpack(KEYS, r + a + 1, locks)) == 0
end
local replies, rest = {}, false

-- A new ring expires by itself, long after the client has begun the next one.
local function remember(from, to)
  local n = call('LPUSH', ARGV[1], unpack(ARGV, from, to))
  if n == to - from + 1 then call('PEXPIRE', ARGV[1], '180000') end
  if n > 70000 then call('LTRIM', ARGV[1], '0', '65535') end
end

-- First the releases, for they free memory, which the acquires may want.
if r > 0 then
  local plain = string.byte(ARGV[3]) == 48 and string.byte(ARGV[3], 3) == 49
  for i = 1, r do
    local value = values[i]
    replies[i] = plain and value and sub(value, 1, 33) == ARGV[3 + i] and (calm or call('EXISTS', KEYS[queues + i]) == 0) and 1
    rest = rest or not replies[i]
  end
  for i = 1, rest and r or 0 do
    if replies[i] then
      call('DEL', KEYS[i])
      remember(3 + i, 3 + i)
    end
  end
  if not rest then
    call('DEL', unpack(KEYS, 1, r))
    remember(4, 3 + r)
  end
end

if a > 0 then
  clock()
  local pass = version == '-' and (calm or call('EXISTS', KEYS[queues]) == 0) or values[queues] == version
  local floor, reserve = 0, 0
  if kind ~= 't' then
    floor, reserve = string.match(kind, '(%d+):(%d+)$')
    floor, reserve = tonumber(floor), tonumber(reserve)
  end
  local drawn = {}
  for i = r + 1, r + a do
    local key, n, s = KEYS[i], us, text
    local last = drawn[key] or values[i]
    if last and (#last ~= #text or last >= text or floor >= us) then
      last = tonumber(last)
      n = last and max(last + 1, us, floor + 1)
      s = n and num(n)
    end
    if last and pass and (calm or call('EXISTS', KEYS[queues + i], KEYS[tombs + i - r]) == 0)
      and call('SET', KEYS[locks + i - r], ARGV[3 + i] .. s .. ':' .. owner, 'PX', ttl, 'NX') then
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
