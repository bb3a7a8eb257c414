package comingfrom;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.baomidou.lock.DefaultLockFailureStrategy;
import com.baomidou.lock.DefaultLockKeyBuilder;
import com.baomidou.lock.LockTemplate;
import com.baomidou.lock.aop.LockAnnotationAdvisor;
import com.baomidou.lock.aop.LockInterceptor;
import com.baomidou.lock.exception.LockFailureException;
import com.baomidou.lock.executor.RedisTemplateLockExecutor;
import com.baomidou.lock.spring.boot.autoconfigure.Lock4jProperties;
import io.keylatch.client.HeldException;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;
import org.springframework.aop.framework.ProxyFactory;
import org.springframework.beans.factory.support.DefaultListableBeanFactory;

/** A second order of the same user waits for a second, and is refused while the first one is under way. */
class Lock4jTest {
    private Callable<Boolean> order;
    private Throwable second;
    private final Set<Long> served = new HashSet<>() {
        private static final long serialVersionUID = 1;

        @Override
        public boolean add(Long user) {
            FutureTask<Boolean> other = new FutureTask<>(order);
            new Thread(other).start();
            try {
                other.get();
            } catch (ExecutionException refused) {
                second = refused.getCause();
            } catch (InterruptedException never) {
                throw new IllegalStateException(never);
            }
            return super.add(user);
        }
    };

    @Test
    void lock4jRefusesTheSecond() throws Exception {
        ProxyFactory factory = new ProxyFactory(new before.Lock4jOrders(served));
        factory.setProxyTargetClass(true);
        factory.addAdvisor(lock4j());
        before.Lock4jOrders orders = (before.Lock4jOrders) factory.getProxy();
        order = () -> orders.order(1);
        assertTrue(order.call());
        assertInstanceOf(LockFailureException.class, second);
    }

    @Test
    void keylatchRefusesTheSecond() throws Exception {
        after.Lock4jOrders orders = new after.Lock4jOrders(Servers.keylatch(), served);
        order = () -> orders.order(1);
        assertTrue(order.call());
        assertInstanceOf(HeldException.class, second);
    }

    /** What its starter configures. */
    private static LockAnnotationAdvisor lock4j() throws Exception {
        Lock4jProperties properties = new Lock4jProperties();
        LockTemplate template = new LockTemplate();
        template.setProperties(properties);
        template.setExecutors(List.of(new RedisTemplateLockExecutor(Servers.template(), properties)));
        template.afterPropertiesSet();
        LockInterceptor interceptor = new LockInterceptor(template, List.of(new DefaultLockKeyBuilder(new DefaultListableBeanFactory())),
            List.of(new DefaultLockFailureStrategy()), properties);
        interceptor.afterPropertiesSet();
        return new LockAnnotationAdvisor(interceptor, 0);
    }
}
