-- Raises counters. Never lowers one.
-- KEYS  the counters   ARGV  1 floor
for _, key in ipairs(KEYS) do
  if tonumber(redis.call('GET', key) or 0) < tonumber(ARGV[1]) then redis.call('SET', key, ARGV[1]) end
end
return 1
