package shop;

import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;

/** What the programs sell: one row of a database, which remembers the largest fencing token that it has seen. */
public class Goods {
    private final JdbcTemplate jdbc;

    public Goods(String url) {
        jdbc = new JdbcTemplate(new DriverManagerDataSource(url));
    }

    public void reset(int stock) {
        jdbc.execute("CREATE TABLE IF NOT EXISTS goods (stock INT, sales INT, fence BIGINT)");
        jdbc.execute("DELETE FROM goods");
        jdbc.update("INSERT INTO goods VALUES (?, 0, 0)", stock);
    }

    public int stock() {
        return jdbc.queryForObject("SELECT stock FROM goods", Integer.class);
    }

    public int sales() {
        return jdbc.queryForObject("SELECT sales FROM goods", Integer.class);
    }

    /** Stores the stock after a sale. */
    public boolean sold(int stock) {
        return jdbc.update("UPDATE goods SET stock = ?, sales = sales + 1", stock) == 1;
    }

    /** Stores the stock after a sale, unless a later holder of the lock was here first. */
    public boolean sold(int stock, long fence) {
        return jdbc.update("UPDATE goods SET stock = ?, sales = sales + 1, fence = ? WHERE fence <= ?", stock, fence, fence) == 1;
    }
}
