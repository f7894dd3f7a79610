-- Raises the counter of a slot, if the lock is held by the nonce.
-- KEYS  1 lock  2 counter   ARGV  1 nonce  2 floor
-- Reply 1 raised | 0 not ours
local value = redis.pcall('GET', KEYS[1]) -- a key of another type is not ours
if type(value) ~= 'string' or string.sub(value, 1, 33) ~= ARGV[1] .. ':' then return 0 end
if string.byte(value, -1) == 0 then return 0 end -- a claim
local n = redis.call('GET', KEYS[2]) or '0'
if not string.match(n, '^%d+$') then return redis.error_reply('FLEND the counter of tokens holds no number') end
if tonumber(n) < tonumber(ARGV[2]) then redis.call('SET', KEYS[2], ARGV[2]) end
return 1
