package io.keylatch.spring;

import io.keylatch.client.Keylatch;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;

/** Tests with one context for all, and the real service. */
@SpringBootTest(classes = Shop.class, webEnvironment = SpringBootTest.WebEnvironment.RANDOM_PORT, properties = {"spring.main.banner-mode=off", "logging.level.root=off",
    "management.endpoint.health.show-details=always", "keylatch.leader-role=captain", "keylatch.lock-ttl=9s",
    "keylatch.idempotency.enabled=true", "keylatch.idempotency.paths=/orders/**,/payments", "keylatch.idempotency.body-limit=1KB"})
abstract class StarterTest {
    @Autowired Keylatch keylatch;

    @DynamicPropertySource
    static void settings(DynamicPropertyRegistry settings) {
        settings.add("keylatch.url", Service::url);
    }
}
