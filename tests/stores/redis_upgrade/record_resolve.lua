--- record_resolve
-- Resolves an unknown outcome. The same resolution again is the same.
--
-- KEYS  1 the record   2 the bucket's index
-- ARGV  1 the fencing token of the run that is meant, '' for any
--       2 the stored response, '' when the work was not executed
-- Gives {'completed' | 'refused', fence, …} | {'freed'} | {'absent'}

local fence, kept = ARGV[1], ARGV[2]

local record = read()
if not record then
  return {'absent'}
end
if fence ~= '' and fence ~= record.fence then
  return view('refused', record, true)
end
if record.stage == 'unknown' then
  if kept == '' then
    redis.call('DEL', key)
    delist()
    return {'freed'}
  end
  finish(record, 'done', kept, record.retention)
  return view('completed', record)
end
if record.stage == 'done' and ending(record) == kept then
  rewrite()
  return view('completed', record)
end
return view('refused', record, true)
