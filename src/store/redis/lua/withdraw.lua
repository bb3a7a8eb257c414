--- withdraw
-- Takes back what one attempt got, be it the lock or a place, unless another attempt was given the
-- same or the grant was renewed.
--
-- KEYS  1 to 4 the lock and its line
-- ARGV  1 token hash   2 attempt   3 the channel for turns
-- Gives {'held'} | {'free'}

local token, attempt, channel = ARGV[1], ARGV[2], ARGV[3]

if waiting > 0 and redis.call('HGET', attempts, token) == attempt then
  drop({token})
end
local held = redis.call('HMGET', lock, 'token', 'attempt')
if held[1] then
  if held[1] ~= token or held[2] ~= attempt then
    return {'held'}
  end
  redis.call('DEL', lock)
end
call_first(channel)
return {'free'}
