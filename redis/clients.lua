-- Forgets the clients of a migration that have not reported for long, takes in one report if there
-- is one, and returns what is left: id, record, id, record. Follows clock.lua.
-- KEYS  1 clients: hash id -> "until record"
-- ARGV  1 id, or "" for no report  2 record, or "" to delete  3 ms to keep it
clock()
if ARGV[1] ~= '' and ARGV[2] == '' then
  call('HDEL', KEYS[1], ARGV[1])
elseif ARGV[1] ~= '' then
  call('HSET', KEYS[1], ARGV[1], num(ms + ARGV[3]) .. ' ' .. ARGV[2])
  if call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then call('PEXPIRE', KEYS[1], ARGV[3]) end
end
local all, live = call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local till, record = string.match(all[i + 1], '^(%d+) (.*)$')
  if till and tonumber(till) > ms then
    live[#live + 1], live[#live + 2] = all[i], record
  else
    call('HDEL', KEYS[1], all[i])
  end
end
return live
