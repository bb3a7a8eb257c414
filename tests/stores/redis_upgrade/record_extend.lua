--- record_extend
-- Lets the lease of a run last its full time from now, if the token has the run.
--
-- KEYS  1 the record   2 the bucket's index
-- ARGV  1 token hash   2 how long an unknown outcome is kept
-- Gives {'extended'} | {'lost'}

local token, unknown_retention = ARGV[1], ARGV[2]

local record = read()
if not record or not is_run_by(record, token) then
  return {'lost'}
end
local outlives = unknown_retention
if record.on_crash == 'rerun' then
  outlives = record.retention
end
keep(record, record.lease + outlives)
redis.call('HSET', key, 'at', whole(now + record.lease))
enlist(record.lease + outlives)
return {'extended'}
