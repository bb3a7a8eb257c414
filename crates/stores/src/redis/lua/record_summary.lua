--- record_summary
-- What a list shows of a record. If the index has it and it is not unfinished, it leaves the index: Redis
-- has expired it, or a version that keeps no index has ended it.
--
-- KEYS  1 the record   2 the bucket's index
-- ARGV  1 '1' if the index has it
-- Gives {'listed', fence, attempts, begun, pttl, stage, at, end, scope} | {'absent'}
--       where the end is the reason, or the beginning of the stored response, which has its status

local record = read()
if ARGV[1] == '1' and (not record or record.stage == 'done') then
  delist()
end
if not record then
  return {'absent'}
end
local reply = view('listed', record)
local last = record.stage ~= 'in-flight' and ending(record)
reply[8] = last and string.sub(last, 1, 16)
reply[9] = redis.call('HGET', key, 'scope')
return reply
