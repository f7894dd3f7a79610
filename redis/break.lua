-- Frees the lock whoever holds it, and hands it on. Follows clock.lua and queue.lua.
-- KEYS  1 lock, then on a cluster those that it may use   ARGV  1 base, as in run.lua  2 claim ms  3 PUBLISH or SPUBLISH
clock()
of(KEYS[1], ARGV[1], '')
call('GET', LOCK) -- fails on a key of another type, which is no lock
call('DEL', LOCK)
grant(ARGV[3], '', ARGV[2])
return 1
