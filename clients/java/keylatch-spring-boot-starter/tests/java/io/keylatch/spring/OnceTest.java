package io.keylatch.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.keylatch.client.HeldException;
import io.keylatch.client.Lease;
import io.keylatch.client.ProblemException;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.aop.framework.AopProxyUtils;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.messaging.MessageChannel;
import org.springframework.messaging.support.GenericMessage;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;

/** A method runs once for a key, and its result is that of each call. */
class OnceTest extends StarterTest {
    @Autowired private Shop.Mail mail;
    @Autowired private Shop.Watched transactions;
    @Autowired @Qualifier("events") private MessageChannel events;
    @Autowired private Shop.Till till;
    private final Shop.Event event = new Shop.Event(UUID.randomUUID().toString(), 1);

    @BeforeEach
    void noRuns() {
        mail().runs = 0;
        mail().failing = null;
    }

    /** The bean behind its proxy, which has no fields of its own. */
    private Shop.Mail mail() {
        return (Shop.Mail) AopProxyUtils.getSingletonTarget(mail);
    }

    private static String refused(Runnable call) {
        return assertThrows(ProblemException.class, call::run).code();
    }

    @Test
    void methodRunsOnceForAnEvent() {
        mail.send(event);
        mail.send(event);
        assertEquals(1, mail().runs);
        mail.send(new Shop.Event(UUID.randomUUID().toString(), 1));
        assertEquals(2, mail().runs);
    }

    @Test
    void messageThatComesTwiceIsHandledOnce() {
        events.send(new GenericMessage<>(event));
        events.send(new GenericMessage<>(event));
        assertEquals(1, mail().runs);
    }

    @Test
    void keysOfTwoMethodsAreApart() {
        mail.send(event);
        mail.pay(event);
        assertEquals(2, mail().runs);
        mail.count(event.id());
        mail.count(event.id().hashCode());
        mail.count(String.valueOf(event.id().hashCode()));
        assertEquals(5, mail().runs);
        new ApplicationContextRunner().withConfiguration(AutoConfigurations.of(KeylatchAutoConfiguration.class))
            .withPropertyValues("keylatch.url=" + Service.url()).withBean(Shop.Parcels.class).run(other -> {
                other.getBean(Shop.Parcels.class).send(event);
                assertEquals(1, ((Shop.Mail) AopProxyUtils.getSingletonTarget(other.getBean(Shop.Parcels.class))).runs);
            });
    }

    @Test
    void secondCallGetsTheResult() {
        Shop.Receipt receipt = new Shop.Receipt(event.id(), List.of(1, 1));
        assertEquals(List.of(receipt, receipt), List.of(mail.book(event), mail.book(event)));
        assertEquals("idempotency-key-reused", refused(() -> mail.book(new Shop.Event(event.id(), 2))));
        assertEquals(List.of(receipt, receipt), List.of(till.keep(event, receipt), till.keep(event, receipt)));
        assertNull(mail.none(event));
        assertNull(mail.none(event));
    }

    @Test
    void failedRunIsUnknown() {
        mail().failing = new IllegalStateException("smtp");
        assertThrows(IllegalStateException.class, () -> mail.send(event));
        assertEquals("outcome-unknown", refused(() -> mail.send(event)));
        assertEquals(1, mail().runs);
    }

    @Test
    void methodThatDidNothingRunsAgain() {
        mail().failing = new Shop.DeclinedException();
        assertThrows(Shop.DeclinedException.class, () -> mail.pay(event));
        assertThrows(Shop.DeclinedException.class, () -> mail.pay(event));
        mail().failing = new IllegalStateException();
        assertThrows(IllegalStateException.class, () -> mail.repeat(event));
        mail().failing = null;
        mail.repeat(event);
        mail.repeat(event);
        assertEquals(4, mail().runs);
    }

    /** What did not run has no outcome, neither an unknown one nor a result. */
    @Test
    void methodThatDoesNotGetItsLockLeavesItsKeyFree() {
        try (Lease other = keylatch.lock("mail").acquire()) {
            assertThrows(HeldException.class, () -> mail.both(event));
            mail.skip(event);
            other.check();
        }
        mail.both(event);
        mail.skip(event);
        assertEquals(2, mail().runs);
    }

    /** Otherwise the next holder of the lock meets a run under way. */
    @Test
    void keyIsDoneBeforeTheLockIsFree() {
        AtomicReference<String> seen = new AtomicReference<>();
        new TransactionTemplate(transactions).executeWithoutResult(status -> {
            mail.both(event);
            TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
                @Override
                public int getOrder() {
                    return LOWEST_PRECEDENCE - 1;
                }

                @Override
                public void afterCompletion(int how) {
                    mail.both(event);
                    seen.set("replayed" + keylatch.show("mail").isPresent());
                }
            });
        });
        assertEquals("replayedtrue", seen.get());
    }

    @Test
    void keyIsDoneWhenTheRunningTransactionCommits() {
        new TransactionTemplate(transactions).executeWithoutResult(status -> {
            mail.send(event);
            assertEquals("request-in-progress", refused(() -> mail.send(event)));
        });
        mail.send(event);
        assertEquals(1, mail().runs);
    }

    @Test
    void keyIsUnknownWhenTheRunningTransactionRollsBack() {
        new TransactionTemplate(transactions).executeWithoutResult(status -> {
            mail.send(event);
            mail.repeat(event);
            status.setRollbackOnly();
        });
        assertEquals("outcome-unknown", refused(() -> mail.send(event)));
        mail.repeat(event);
        assertEquals(3, mail().runs);
    }

    @Test
    void callWithoutAKeyIsRefused() {
        assertThrows(IllegalArgumentException.class, () -> mail.send(new Shop.Event(null, 1)));
        assertThrows(IllegalArgumentException.class, () -> mail.send(new Shop.Event("", 1)));
        assertTrue(assertThrows(IllegalStateException.class, () -> mail.later(event)).getMessage().contains("before its work is done"));
        assertEquals(0, mail().runs);
    }
}
