-- Says on a channel which locks are watched, for those who change them to say so on it too.
--
-- ARGV  1 the channel   from 2 on the keys of the locks
-- Gives {'said'}

for at = 2, #ARGV do
  redis.pcall('PUBLISH', ARGV[1], 'watched\n' .. ARGV[at])
end
return {'said'}
