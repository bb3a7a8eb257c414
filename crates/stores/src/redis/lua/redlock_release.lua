--- redlock_release
-- Releases a lock on this node, if the token has it.
--
-- KEYS  1 the lock
-- ARGV  1 token hash
-- Gives 'released' | 'mismatch' | 'not-held'

local holder = redis.call('HGET', KEYS[1], 'token')
if not holder then
  return 'not-held'
end
if holder ~= ARGV[1] then
  return 'mismatch'
end
redis.call('DEL', KEYS[1])
return 'released'
