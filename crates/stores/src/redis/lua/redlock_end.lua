--- redlock_end
-- Ends the grant of a token on this node: a release. With an attempt it is a withdrawal, which takes only
-- what no other attempt shares and no renewal has confirmed.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 attempt, or none
-- Finds 'ended' | 'competing', also where the attempt may not end it | 'free'

local token, attempt = unpack(ARGV)

local held = redis.call('HMGET', lock, 'token', 'attempt')
if not held[1] then
  return report('free')
end
if held[1] ~= token then
  return report('competing')
end
if attempt and held[2] ~= attempt then
  return report('competing')
end
redis.call('DEL', lock)
return report('ended')
