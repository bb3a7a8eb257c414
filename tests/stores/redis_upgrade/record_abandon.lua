--- record_abandon
-- Frees the key of a run that did nothing, if the token has the run.
--
-- KEYS  1 the record   2 the bucket's index
-- ARGV  1 token hash
-- Gives {'abandoned'} | {'refused', fence, …} | {'absent'}

local token = ARGV[1]

local record = read()
if not record then
  return {'absent'}
end
if is_run_by(record, token) then
  redis.call('DEL', key)
  delist()
  return {'abandoned'}
end
return view('refused', record, true)
