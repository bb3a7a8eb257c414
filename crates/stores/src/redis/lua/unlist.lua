--- unlist
-- Takes a record out of the index of unfinished records, if Redis has expired it, or a version that keeps
-- no index has ended it.
--
-- KEYS  1 the record   2 the bucket's index

local stage = redis.pcall('HGET', KEYS[1], 'stage')
if redis.call('PTTL', KEYS[1]) == -2 or stage == 'done' then
  redis.call('ZREM', KEYS[2], string.sub(KEYS[1], -43))
end
