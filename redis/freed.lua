-- Release and abandon, first part: the uncontended release.
--
-- KEYS  1 to 5 as in fast.lua  6 ring of the nonces released last in the slot
-- ARGV  1 nonce  2 claim ms  3 ms to keep a tombstone, or 0  4 PUBLISH or SPUBLISH
--       5 "1" release: remember the nonce as released; "0" abandon
-- Reply 1 released, now or before | 0 not ours
local value = redis.pcall('GET', KEYS[1]) -- a key of another type is not ours
local mine = type(value) == 'string' and string.sub(value, 1, 33) == ARGV[1] .. ':'
if mine then
  redis.call('DEL', KEYS[1])
  if ARGV[5] == '1' then
    if redis.call('LPUSH', KEYS[6], ARGV[1]) > 160 then redis.call('LTRIM', KEYS[6], 0, 127) end
    redis.call('PEXPIRE', KEYS[6], 60000)
  end
  if ARGV[3] == '0' and redis.call('EXISTS', KEYS[2]) == 0 then return 1 end
end
