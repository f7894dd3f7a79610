-- Writes the gate of a migration in one place, if its version is what the writer expects. Follows
-- gates.lua.
-- KEYS  1 version  2 gates
-- ARGV  1 migration  2 record, "" to delete it  3 hash of the record expected, "" for none, * for any
-- Reply 1 it stands there now | 0 another does | -1 what stands there are no gates
local version, all = gates(KEYS[1])
if not version or version ~= '' and version ~= hash(listed(all)) then return -1 end
if version == '' and #all > 0 then -- what is left of gates that were lost
  redis.call('DEL', KEYS[2])
  all = {}
end
local at = #all + 1 -- of the migration in the hash
for i = 1, #all, 2 do
  if all[i] == ARGV[1] then at = i end
end
local old = all[at + 1] or ''
if old == ARGV[2] then return 1 end
if ARGV[3] ~= '*' and ARGV[3] ~= (old ~= '' and hash(old) or '') then return 0 end
if ARGV[2] ~= '' then
  all[at], all[at + 1] = ARGV[1], ARGV[2]
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
else
  table.remove(all, at)
  table.remove(all, at)
  redis.call('HDEL', KEYS[2], ARGV[1])
end
if #all > 0 then redis.call('SET', KEYS[1], hash(listed(all))) else redis.call('DEL', KEYS[1]) end
return 1
