-- Frees the lock whoever holds it, and hands it on. Follows queue.lua.
-- KEYS  1 to 5 as in fast.lua (5 is not used)   ARGV  1 claim ms  2 PUBLISH or SPUBLISH
redis.call('GET', LOCK) -- fails on a key of another type, which is no lock
redis.call('DEL', LOCK)
grant(ARGV[2], '', ARGV[1])
return 1
