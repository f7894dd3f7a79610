-- What run.lua and share.lua are given: r releases, a acquires, and where the keys and arguments of each begin.
local r, version = tonumber(ARGV[1]), ARGV[2]
local a = (#ARGV - 3 - 3 * r) / 4
local queues = r + a + 1 -- what is before them
local tombs, locks = queues + r + a, queues + r + 2 * a
local asked = 3 + 3 * r -- what is before the arguments of the acquires
local acquire, release -- what rest.lua does
