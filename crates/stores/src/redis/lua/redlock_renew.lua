--- redlock_renew
-- Lets a lease last a full TTL from now on this node, if it is there. A lease that is over stays
-- over. The node promises the ballot, in case the renewal needs an accept.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 TTL in ms, or empty for that of the lease   3 ballot
-- Finds 'own' | 'competing' | 'free'

local token, ttl, ballot = unpack(ARGV)

local holder = redis.call('HGET', lock, 'token')
if not holder then
  return report('free')
end
if holder ~= token then
  return report('competing')
end
if ttl == '' then
  ttl = redis.call('HGET', lock, 'ttl')
end
-- A client that renews has read the grant, so no attempt may withdraw it any more.
redis.call('HSET', lock, 'ttl', ttl, 'attempt', '')
redis.call('PEXPIRE', lock, ttl)
promise(ballot)
return report('own')
