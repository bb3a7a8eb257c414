--- unlist
-- Takes a record out of the index of unfinished records, if Redis has expired it.
--
-- KEYS  1 the record   2 the bucket's index

if redis.call('PTTL', KEYS[1]) == -2 then
  redis.call('ZREM', KEYS[2], string.sub(KEYS[1], -43))
end
