--- announce
-- Announces on a channel the locks that a process watches, so that commands on them publish their
-- changes there.
--
-- ARGV  1 the channel   from 2 on the keys of the locks
-- Gives {'said'}

for at = 2, #ARGV do
  redis.pcall('PUBLISH', ARGV[1], 'watched\n' .. ARGV[at])
end
return {'said'}
