package before;

import redis.clients.jedis.JedisPooled;

/** A lock that a daemon thread extends for as long as the work takes. */
public class DaemonLock {
    private final JedisPooled jedis;
    private final String key;
    private final long seconds;
    private Thread daemon;

    public DaemonLock(JedisPooled jedis, String key, long seconds) {
        this.jedis = jedis;
        this.key = key;
        this.seconds = seconds;
    }

    public boolean lock() {
        if (jedis.setnx(key, "locked") == 0) {
            return false;
        }
        jedis.expire(key, seconds);
        daemon = new Thread(this::extend);
        daemon.setDaemon(true);
        daemon.start();
        return true;
    }

    private void extend() {
        try {
            while (true) {
                Thread.sleep(seconds * 1000 / 3);
                jedis.expire(key, seconds);
            }
        } catch (InterruptedException unlocked) {
            // The work is done.
        }
    }

    public void unlock() {
        daemon.interrupt();
        jedis.del(key);
    }
}
