--- release
-- Releases a lock, if the token holds it.
--
-- KEYS  1 to 4 the lock and its queue
-- ARGV  1 token hash   2 the channel for wakeups   3 the channel for changes, '' if the lock is not
--       watched
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
wake_first(channel)
return {'released'}
