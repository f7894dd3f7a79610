-- Reads at once what the votes and releases of a call would read one after the other, and gives
-- the votes their numbers.

-- How many arguments the operations have that it knows: a call with others is left alone.
local ARGS = {v = 4, r = 3}

-- Numbers are for votes that are to find their lock free. The counters are written before the first
-- lock has such a number.
local function count(locks, at)
  local free, with, named, freed = {}, {}, {STATE}, {}
  for i, lock in ipairs(locks) do
    local from = at[i]
    local id, value = ARGV[from + 1], values[lock]
    if ARGV[from] == 'r' then
      freed[lock] = value and string.sub(value, 1, #id + 1) == id .. ':' or freed[lock]
    elseif not far(agreed(ARGV[from + 4]).floor, ARGV[from + 3]) and (not value or freed[lock]) then
      free[#free + 1], with[#free + 1] = i, terms
      named[#named + 1] = 'c' .. ARGV[from + 3]
    end
  end
  numbers = {}
  if #free == 0 then return end
  local counters, last, write = call('HMGET', unpack(named)), {}, {}
  for k, i in ipairs(free) do
    local name = named[k + 1]
    local s = number(last[name] or counters[k], ARGV[at[i] + 2], with[k])
    numbers[i], last[name] = s, s
    write[2 * k - 1], write[2 * k] = name, s
  end
  note(unpack(write))
end

local function ahead(keys)
  values, clear, numbers = nil, false, nil
  if #keys < 4 then return end
  local locks, at, rare, from = {}, {}, {set.gates}, 2
  for i = 2, #keys do
    local kind, lock = ARGV[from], keys[i]
    if not ARGS[kind] then return end
    locks[i - 1], at[i - 1] = lock, from
    rare[#rare + 1] = RESERVED .. lock
    rare[#rare + 1] = WAITERS .. lock
    if kind == 'v' then rare[#rare + 1] = TOMB .. ARGV[from + 1] end
    from = from + 1 + ARGS[kind]
  end
  if quarantine() > 0 then return end
  local read = redis.pcall('MGET', unpack(locks))
  if read.err then return end -- the user has no right to it
  clear = call('EXISTS', unpack(rare)) == 0
  if clear then known = {} end
  values = {}
  for i, lock in ipairs(locks) do values[lock] = read[i] or nil end
  count(locks, at)
end
