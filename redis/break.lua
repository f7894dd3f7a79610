-- Frees the lock whoever holds it, and hands it on. What is no lock is left alone. Follows
-- shape.lua, clock.lua and holds.lua.
-- KEYS  1 lock  2 version of the gates, then on a cluster those that it may use
-- ARGV  1 base, as in run.lua  2 claim ms  3 PUBLISH or SPUBLISH  4 as in shape.lua
--       5 nonce of this Break: a copy that comes later would free the next holder's lock
-- Reply 1 free | {what}: what the key holds instead of a lock
local what = shape(KEYS[1], ARGV[4])
if what and what ~= 'lock' then return {what} end
clock()
of(KEYS[1], ARGV[1], ARGV[5])
if call('EXISTS', TOMB) == 1 then return 1 end
call('DEL', TOMB) -- which is not there: a server without memory lets a script write that has deleted
call('SET', TOMB, 'break', 'PX', 60000)
local value = redis.pcall('GET', KEYS[1]) -- a lock of Redisson is no string
local nonce = type(value) == 'string' and string.match(value, '^(%x+):%d+:') or ''
of(KEYS[1], ARGV[1], nonce)
GATES = KEYS[2]
local several = type(value) == 'string' and marker(value) and call('ZRANGE', HOLDS, 0, -1) or {}
call('DEL', LOCK, HOLDS, PARTS)
if #nonce == 32 then mark(TOMB, 0) end
for _, nonce in ipairs(several) do mark(ARGV[1] .. 'x' .. nonce, 0) end
held = ''
serve(ARGV[3], '', ARGV[2])
return 1
