-- Gives a lock back, if the token holds it.
--
-- KEYS  1 the lock
-- ARGV  1 token hash
-- Gives {'released'} | {'mismatch'} | {'not-held'}

local lock, token = KEYS[1], ARGV[1]

local holder = redis.call('HGET', lock, 'token')
if not holder then
  return {'not-held'}
end
if holder ~= token then
  return {'mismatch'}
end
redis.call('DEL', lock)
return {'released'}
