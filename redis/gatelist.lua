-- What gate.lua and gates.lua share: the gates of one place, as a list in the order of the migrations' names, and its version.
-- Their version is a hash of the list: who knows what list a version stands for needs to compare no more than that.
-- KEYS  1 version: missing where there are no gates   2 gates: hash migration -> record as JSON
local version, all = redis.pcall('GET', KEYS[1]), redis.pcall('HGETALL', KEYS[2])
local foreign = type(version) == 'table' or all.err
local function listed()
  local moves, records = {}, {}
  for i = 1, #all, 2 do moves[#moves + 1], records[all[i]] = all[i], all[i + 1] end
  table.sort(moves)
  for i, move in ipairs(moves) do moves[i] = records[move] end
  return '[' .. table.concat(moves, ',') .. ']'
end
