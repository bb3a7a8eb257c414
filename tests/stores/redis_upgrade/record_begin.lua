--- record_begin
-- Starts a run, or reports an earlier one. The same token again is the same run.
--
-- KEYS  1 the record   2 the bucket's fencing counter   3 the bucket's index
-- ARGV  1 token hash   2 fingerprint   3 lease   4 retention   5 'unknown' | 'rerun' after a crash
--       6 how long the record outlives its lease   7 what it is about
-- Gives {'started' | 'again' | 'found' | 'reused', fence, …}

local token, fingerprint, lease, retention, on_crash, outlives, scope = unpack(ARGV)

local record = read()
if record then
  if record.fingerprint ~= fingerprint then
    return view('reused', record, true)
  end
  if is_run_by(record, token) then
    rewrite()
    return view('again', record)
  end
  if record.stage ~= 'in-flight' or not record.lease_over then
    return view('found', record, true)
  end
end

local earlier = record or {attempts = 0, begun = whole(now)}
local started = {
  stage = 'in-flight', at = now + lease, fence = next_fence(KEYS[2], time),
  attempts = whole(earlier.attempts + 1), begun = earlier.begun,
}
redis.call('HSET', key, 'stage', started.stage, 'at', whole(started.at), 'token', token,
  'fingerprint', fingerprint, 'fence', started.fence, 'attempts', started.attempts,
  'begun', started.begun, 'lease', lease, 'retention', retention, 'on_crash', on_crash,
  'scope', scope)
keep(started, lease + outlives)
enlist(lease + outlives)
return view('started', started)
