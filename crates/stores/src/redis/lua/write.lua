
-- Carries out changes of rows, each by itself: if the row still has the version that the change names, and
-- this server's clock is within the change's guard. All is in this one step, so nothing comes between.
--
-- Gives {seconds, microseconds, …} with for each change 0 if it was not carried out, {row} if another row is
-- there, {nil} if none is, 1 if it was carried out, 2 if it was and a client relies on it, or the code of the
-- error for which Redis refused it

local function change(row, counter, index, was, new, from, till, lasts, given, relied, said, unfinished)
  local met, other = is_met(row, counter, was, from, till, given)
  if not met then
    return other or 0
  end
  local err = carry_out(row, counter, index, was, new, lasts, tonumber(given), said, unfinished)
  return err or (relied == '1' and 2 or 1)
end

local key, refusal = 1, nil
for at = 3, #ARGV, 9 do
  local index = keys_each > 2 and KEYS[key + 2]
  local outcome = change(KEYS[key], KEYS[key + 1], index, unpack(ARGV, at, at + 8))
  if type(outcome) == 'table' and outcome.err then
    refusal = refusal or outcome
    outcome = string.match(outcome.err, '%u%u+') or 'ERR'
  end
  reply[#reply + 1] = outcome
  key = key + keys_each
end
if refusal and not has_written and not string.find(refusal.err, 'OOM') then
  -- It is about the server or the user, and nothing was carried out.
  return refusal
end
return reply
