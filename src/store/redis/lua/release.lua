--- release
-- Gives a lock back, if the token holds it.
--
-- KEYS  1 to 4 the lock and its line
-- ARGV  1 token hash   2 the channel for turns
-- Gives {'released'} | {'mismatch'} | {'not-held'}

local token, channel = ARGV[1], ARGV[2]

local holder = redis.call('HGET', lock, 'token')
if not holder then
  return {'not-held'}
end
if holder ~= token then
  return {'mismatch'}
end
redis.call('DEL', lock)
call_first(channel)
return {'released'}
