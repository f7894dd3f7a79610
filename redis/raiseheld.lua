-- Leaves raise.lua, which follows, the counter of a slot and the floor, if the lock is held by the nonce.
-- KEYS  1 lock  2 counter   ARGV  1 nonce  2 floor
-- Reply 1 raised | 0 not ours
local value = redis.pcall('GET', table.remove(KEYS, 1)) -- a key of another type is not ours
local nonce = table.remove(ARGV, 1)
if type(value) ~= 'string' or string.sub(value, 1, 33) ~= nonce .. ':' then return 0 end
if string.byte(value, -1) == 0 then return 0 end -- a claim
