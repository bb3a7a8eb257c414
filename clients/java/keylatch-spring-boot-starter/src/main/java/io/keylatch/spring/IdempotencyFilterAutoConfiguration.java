package io.keylatch.spring;

import io.keylatch.client.Keylatch;
import jakarta.servlet.Filter;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.web.filter.OncePerRequestFilter;

/** The filter for requests, where the program asks for it. */
@AutoConfiguration(after = KeylatchAutoConfiguration.class)
@ConditionalOnClass({Filter.class, OncePerRequestFilter.class})
@ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
@ConditionalOnProperty("keylatch.idempotency.enabled")
public class IdempotencyFilterAutoConfiguration {
    IdempotencyFilterAutoConfiguration() { }

    @Bean
    IdempotencyFilter keylatchIdempotencyFilter(Keylatch keylatch, KeylatchProperties settings, ObjectProvider<Meters> meters) {
        return new IdempotencyFilter(keylatch, settings.idempotency, KeylatchAutoConfiguration.meters(meters));
    }
}
