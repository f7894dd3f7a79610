-- The gates of one place: a hash, migration -> record as JSON, and beside it their version, a hash
-- of their list in the order of the migrations' names. A client that knows the list of a version
-- compares only versions. The version alone is the gate: where it is missing there is none.
local function hash(text) return string.sub(redis.sha1hex(text), 1, 16) end

-- Whether a comes before b, byte by byte: Lua's own order is that of the server's locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The list of a hash as HGETALL has it.
local function listed(all)
  local moves, records = {}, {}
  for i = 1, #all, 2 do moves[#moves + 1], records[all[i]] = all[i], all[i + 1] end
  table.sort(moves, before)
  for i, move in ipairs(moves) do moves[i] = records[move] end
  return '[' .. table.concat(moves, ',') .. ']'
end

-- Returns the version, '' for no gates, and the hash; nil where something else stands there.
local function gates(key)
  local version, all = redis.pcall('GET', key), redis.pcall('HGETALL', key .. '\0')
  if type(version) == 'table' or all.err then return nil end
  return version or '', all
end
