--- release
-- Gives a lock back, if the token holds it.
--
-- KEYS  1 to 4 the lock and its line
-- ARGV  1 token hash   2 the channel for turns   3 the channel for changes, '' if nobody watches
-- Gives {'released'} | {'mismatch'} | {'not-held'}

local token, channel, changes = ARGV[1], ARGV[2], ARGV[3]

local holder = redis.call('HGET', lock, 'token')
if not holder then
  return {'not-held'}
end
if holder ~= token then
  return {'mismatch'}
end
if changes ~= '' then
  redis.pcall('PUBLISH', changes, 'released\n' .. redis.call('HGET', lock, 'fence') .. '\n' .. lock)
end
redis.call('DEL', lock)
call_first(channel)
return {'released'}
