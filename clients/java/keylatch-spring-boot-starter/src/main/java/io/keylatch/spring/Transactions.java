package io.keylatch.spring;

import java.util.function.Consumer;
import org.springframework.core.Ordered;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.util.ClassUtils;

/** The transaction that runs in this thread, where the program has spring-tx. */
final class Transactions {
    /** A lock is released when all keys are done: whoever gets it next meets no run under way. */
    static final int LOCK = Ordered.LOWEST_PRECEDENCE;
    static final int KEY = LOCK - 1;
    private static final boolean IS_PRESENT =
        ClassUtils.isPresent("org.springframework.transaction.support.TransactionSynchronizationManager", null);

    private Transactions() { }

    static boolean isRunning() {
        return IS_PRESENT && Running.is();
    }

    /** Calls back before the commit, which an exception turns into a rollback, and at the end: whether it was committed. */
    static void atEnd(int order, Runnable beforeCommit, Consumer<Boolean> end) {
        Running.register(order, beforeCommit, end);
    }

    private static final class Running {
        static boolean is() {
            return TransactionSynchronizationManager.isActualTransactionActive() && TransactionSynchronizationManager.isSynchronizationActive();
        }

        static void register(int order, Runnable beforeCommit, Consumer<Boolean> end) {
            TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
                @Override
                public int getOrder() {
                    return order;
                }

                @Override
                public void beforeCommit(boolean isReadOnly) {
                    beforeCommit.run();
                }

                @Override
                public void afterCompletion(int status) {
                    end.accept(status == STATUS_COMMITTED);
                }
            });
        }
    }
}
