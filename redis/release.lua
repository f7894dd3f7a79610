-- Frees the lock if the nonce holds it, takes the nonce out of the queue, and
-- hands the lock on. Follows queue.lua in the same script; the uncontended release comes first,
-- in freed.lua.
if ARGV[3] ~= '0' then redis.call('SET', TOMB, '1', 'PX', ARGV[3]) end
local left = redis.call('ZREM', QUEUE, ARGV[1])
if left == 1 then redis.call('HDEL', WAITERS, ARGV[1]) end
if mine then
  grant(ARGV[4], '', ARGV[2])
  return 1
end
-- Not ours. A release whose reply was lost finds its nonce among the last released ones.
if ARGV[5] == '1' and redis.call('LPOS', KEYS[6], ARGV[1]) then return 1 end
return 0
