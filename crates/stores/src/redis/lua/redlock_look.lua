--- redlock_look
-- Reports the holder of a lock on this node.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- Finds 'competing' | 'free'

return report(redis.call('EXISTS', lock) == 1 and 'competing' or 'free')
