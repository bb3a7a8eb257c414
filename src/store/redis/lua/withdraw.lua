-- Takes back what one attempt got, unless the grant was given to another attempt too or renewed.
--
-- KEYS  1 the lock
-- ARGV  1 token hash   2 attempt
-- Gives {'withdrawn'} | {'not-held'}

local lock, token, attempt = KEYS[1], ARGV[1], ARGV[2]

local held = redis.call('HMGET', lock, 'token', 'attempt')
if held[1] == token and held[2] == attempt then
  redis.call('DEL', lock)
  return {'withdrawn'}
end
return {'not-held'}
