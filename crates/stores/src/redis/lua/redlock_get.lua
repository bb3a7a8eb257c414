--- redlock_get
-- Says who has a lock on this node.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- Finds 'other' | 'free'

return vote(redis.call('EXISTS', lock) == 1 and 'other' or 'free')
