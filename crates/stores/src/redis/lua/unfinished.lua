-- The names of a bucket's unfinished records, in the order of their ends.
--
-- KEYS  1 the bucket's index

return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf')
