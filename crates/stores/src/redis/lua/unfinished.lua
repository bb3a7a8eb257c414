--- unfinished
-- Some of a bucket's unfinished records, in the order of their ends.
--
-- KEYS  1 the bucket's index
-- ARGV  1 the least score   2 how many to leave out   3 how many to give
-- Gives {name, score, …}

return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
