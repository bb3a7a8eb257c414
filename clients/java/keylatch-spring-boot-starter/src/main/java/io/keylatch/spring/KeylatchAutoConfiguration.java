package io.keylatch.spring;

import io.keylatch.client.Keylatch;
import io.micrometer.core.instrument.MeterRegistry;
import java.io.IOException;
import java.lang.annotation.Annotation;
import java.lang.reflect.Type;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;
import net.javacrumbs.shedlock.core.LockProvider;
import org.aopalliance.intercept.MethodInterceptor;
import org.springframework.aop.Advisor;
import org.springframework.aop.config.AopConfigUtils;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.beans.factory.config.BeanFactoryPostProcessor;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.beans.factory.support.BeanDefinitionRegistry;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnSingleCandidate;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Role;
import org.springframework.core.Ordered;
import org.springframework.core.env.Environment;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * What a program has of keylatch: a client, {@link Locked} and {@link Once}, and where it has their classes, health, times of Micrometer,
 * Spring Integration's LockRegistry and ShedLock's LockProvider. Each bean gives way to one of the program's own.
 */
@AutoConfiguration(afterName = {
    "org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration",
    "org.springframework.boot.jackson.autoconfigure.JacksonAutoConfiguration",
    "org.springframework.boot.actuate.autoconfigure.metrics.CompositeMeterRegistryAutoConfiguration",
    "org.springframework.boot.micrometer.metrics.autoconfigure.CompositeMeterRegistryAutoConfiguration"},
    beforeName = {
    "org.springframework.boot.autoconfigure.integration.IntegrationAutoConfiguration",
    "org.springframework.boot.integration.autoconfigure.IntegrationAutoConfiguration"})
@EnableConfigurationProperties(KeylatchProperties.class)
public class KeylatchAutoConfiguration {
    /** Before that of {@code @Transactional}, which comes last, and behind those that refuse calls. */
    private static final int ORDER = Ordered.LOWEST_PRECEDENCE - 100;

    KeylatchAutoConfiguration() { }

    /** The settings are keylatch.* of the program, and KEYLATCH_ where they say nothing. */
    @Bean
    @ConditionalOnMissingBean
    Keylatch keylatch(KeylatchProperties settings) {
        Keylatch.Builder builder = Keylatch.builder();
        set(settings.url.isEmpty() ? null : settings.url.toArray(new String[0]), builder::url);
        set(settings.apiKey, builder::apiKey);
        set(settings.apiKeyFile, file -> builder.apiKeyFile(Path.of(file)));
        set(settings.ca, file -> builder.ca(Path.of(file)));
        Path key = settings.certificateKey == null ? null : Path.of(settings.certificateKey);
        set(settings.certificate, file -> builder.certificate(Path.of(file), key));
        set(settings.owner, builder::owner);
        set(settings.timeout, builder::timeout);
        return builder.build();
    }

    private static <T> void set(T value, Consumer<T> setting) {
        if (value != null) {
            setting.accept(value);
        }
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static BeanFactoryPostProcessor keylatchProxies() {
        return beans -> AopConfigUtils.registerAutoProxyCreatorIfNecessary((BeanDefinitionRegistry) beans);
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static Advisor lockedAdvisor(ConfigurableBeanFactory beans, ObjectProvider<Keylatch> keylatch, ObjectProvider<Meters> meters,
            Environment environment) {
        return advisor(Locked.class, 0, environment, new LockedInterceptor(keylatch::getObject, meters(meters), new Calls(beans)));
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static Advisor onceAdvisor(ConfigurableBeanFactory beans, ObjectProvider<Keylatch> keylatch, ObjectProvider<Meters> meters,
            ObjectProvider<OnceResults> results, Environment environment) {
        return advisor(Once.class, 1, environment,
            new OnceInterceptor(keylatch::getObject, meters(meters), results::getIfAvailable, new Calls(beans)));
    }

    static Supplier<Meters> meters(ObjectProvider<Meters> meters) {
        return () -> meters.getIfAvailable(() -> (name, since, tags) -> { });
    }

    private static Advisor advisor(Class<? extends Annotation> type, int behind, Environment environment, MethodInterceptor interceptor) {
        DefaultPointcutAdvisor advisor = new DefaultPointcutAdvisor(new AnnotationMatchingPointcut(null, type, true), interceptor);
        advisor.setOrder(environment.getProperty("keylatch.advice-order", Integer.class, ORDER) + behind);
        return advisor;
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class Micrometer {
        @Bean
        @ConditionalOnBean(MeterRegistry.class)
        Meters keylatchMeters(MeterRegistry registry) {
            return (name, since, tags) -> registry.timer(name, tags).record(System.nanoTime() - since, TimeUnit.NANOSECONDS);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.boot.actuate.health.HealthIndicator")
    @ConditionalOnProperty(name = "management.health.keylatch.enabled", matchIfMissing = true)
    static class Boot3Health {
        @Bean
        org.springframework.boot.actuate.health.HealthIndicator keylatchHealthIndicator(Keylatch keylatch) {
            return () -> {
                try {
                    return org.springframework.boot.actuate.health.Health.up().withDetails(info(keylatch)).build();
                } catch (RuntimeException failed) {
                    return org.springframework.boot.actuate.health.Health.down().withDetail("error", failed.toString()).build();
                }
            };
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.boot.health.contributor.HealthIndicator")
    @ConditionalOnProperty(name = "management.health.keylatch.enabled", matchIfMissing = true)
    static class Boot4Health {
        @Bean
        org.springframework.boot.health.contributor.HealthIndicator keylatchHealthIndicator(Keylatch keylatch) {
            return () -> {
                try {
                    return org.springframework.boot.health.contributor.Health.up().withDetails(info(keylatch)).build();
                } catch (RuntimeException failed) {
                    return org.springframework.boot.health.contributor.Health.down().withDetail("error", failed.toString()).build();
                }
            };
        }
    }

    /** What an operator wants to know; throws where the service or its store does not respond. */
    private static Map<String, Object> info(Keylatch keylatch) {
        Map<String, Object> info = keylatch.call("GET", "/v1/info", null);
        Map<?, ?> store = (Map<?, ?>) info.get("store");
        if (!Boolean.TRUE.equals(store.get("reachable"))) {
            throw new IllegalStateException("the store " + store.get("kind") + " does not respond");
        }
        return Map.of("version", info.get("version"), "store", store.get("kind"), "tier", store.get("tier"));
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockRegistry.class)
    static class Integration {
        @Bean
        @ConditionalOnMissingBean(LockRegistry.class)
        KeylatchLockRegistry keylatchLockRegistry(Keylatch keylatch, KeylatchProperties settings) {
            return new KeylatchLockRegistry(keylatch, settings.lockPrefix, settings.lockTtl);
        }

        @Bean
        @ConditionalOnProperty("keylatch.leader-role")
        @ConditionalOnMissingBean
        @SuppressWarnings("rawtypes")
        LockRegistryLeaderInitiator keylatchLeaderInitiator(LockRegistry locks, KeylatchProperties settings) {
            return new LockRegistryLeaderInitiator(locks, new DefaultCandidate(null, settings.leaderRole));
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockProvider.class)
    static class ShedLock {
        @Bean
        @ConditionalOnMissingBean(LockProvider.class)
        KeylatchLockProvider keylatchLockProvider(Keylatch keylatch, KeylatchProperties settings) {
            return new KeylatchLockProvider(keylatch, settings.lockPrefix);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(com.fasterxml.jackson.databind.ObjectMapper.class)
    static class Jackson2 {
        @Bean
        @ConditionalOnSingleCandidate(com.fasterxml.jackson.databind.ObjectMapper.class)
        @ConditionalOnMissingBean(OnceResults.class)
        OnceResults keylatchJackson2Results(com.fasterxml.jackson.databind.ObjectMapper json) {
            return results(json::writeValueAsBytes, (bytes, type) -> json.readValue(bytes, json.constructType(type)));
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(tools.jackson.databind.ObjectMapper.class)
    static class Jackson3 {
        @Bean
        @ConditionalOnSingleCandidate(tools.jackson.databind.ObjectMapper.class)
        @ConditionalOnMissingBean(OnceResults.class)
        OnceResults keylatchJackson3Results(tools.jackson.databind.ObjectMapper json) {
            return results(json::writeValueAsBytes, (bytes, type) -> json.readValue(bytes, json.constructType(type)));
        }
    }

    private interface Writing {
        byte[] write(Object result) throws IOException;
    }

    private interface Reading {
        Object read(byte[] bytes, Type type) throws IOException;
    }

    private static OnceResults results(Writing writing, Reading reading) {
        return new OnceResults() {
            @Override
            public byte[] write(Object result) throws IOException {
                return writing.write(result);
            }

            @Override
            public Object read(byte[] bytes, Type type) throws IOException {
                return reading.read(bytes, type);
            }
        };
    }
}
