-- The run id of the server's process. It is a new one after a restart.
local function process()
  RUN = RUN or string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  return RUN
end
