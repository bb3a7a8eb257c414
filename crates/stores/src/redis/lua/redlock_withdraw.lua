--- redlock_withdraw
-- Undoes what one attempt got on this node, unless another attempt shares it or the grant was renewed.
--
-- KEYS  1 the lock
-- ARGV  1 token hash   2 attempt
-- Gives 'held' | 'free'

local held = redis.call('HMGET', KEYS[1], 'token', 'attempt')
if held[1] then
  if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
    return 'held'
  end
  redis.call('DEL', KEYS[1])
end
return 'free'
