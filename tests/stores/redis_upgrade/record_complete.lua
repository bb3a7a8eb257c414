--- record_complete
-- Ends a run and stores its result, if the token has the run. The same result again is the same.
--
-- KEYS  1 the record   2 the bucket's index
-- ARGV  1 token hash   2 'done' | 'unknown'   3 the stored response, or why the outcome is
--       unknown   4 how long an unknown outcome is kept
-- Gives {'kept' | 'refused', fence, …} | {'absent'}

local token, stage, last, unknown_retention = unpack(ARGV)

local record = read()
if not record then
  return {'absent'}
end
if is_run_by(record, token) then
  local span = unknown_retention
  if stage == 'done' then
    span = record.retention
  end
  finish(record, stage, last, span)
  return view('kept', record)
end
if record.token == token and record.stage == stage and ending(record) == last then
  rewrite()
  return view('kept', record)
end
return view('refused', record, true)
