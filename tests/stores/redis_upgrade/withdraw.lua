--- withdraw
-- Undoes what one attempt got, the lock or a queue entry, unless another attempt shares it or the
-- grant was renewed.
--
-- KEYS  1 to 4 the lock and its queue
-- ARGV  1 token hash   2 attempt   3 the channel for wakeups   4 the channel for changes,
--       '' if the lock is not watched
-- Gives {'held'} | {'free'}

local token, attempt, channel, changes = unpack(ARGV)

if waiting > 0 and redis.call('HGET', attempts, token) == attempt then
  drop({token})
end
local held = redis.call('HMGET', lock, 'token', 'attempt', 'fence')
if held[1] then
  if held[1] ~= token or held[2] ~= attempt then
    return {'held'}
  end
  if changes ~= '' then
    redis.pcall('PUBLISH', changes, 'released\n' .. held[3] .. '\n' .. lock)
  end
  redis.call('DEL', lock)
end
wake_first(channel)
return {'free'}
