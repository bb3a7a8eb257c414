package io.keylatch.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.get;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.jsonPath;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.status;

import com.jayway.jsonpath.JsonPath;
import io.keylatch.client.Keylatch;
import io.micrometer.core.instrument.MeterRegistry;
import java.io.InputStream;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.UUID;
import org.junit.jupiter.api.Test;
import org.springframework.aop.framework.AopProxyUtils;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.context.properties.bind.BindHandler;
import org.springframework.boot.context.properties.bind.Bindable;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.boot.context.properties.bind.handler.NoUnboundElementsBindHandler;
import org.springframework.boot.context.properties.source.MapConfigurationPropertySource;
import org.springframework.boot.convert.ApplicationConversionService;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.boot.test.context.runner.WebApplicationContextRunner;
import org.springframework.test.web.servlet.setup.MockMvcBuilders;
import org.springframework.util.ClassUtils;
import org.springframework.web.context.WebApplicationContext;

/** What a program gets, by what it has and what it sets. */
class AutoConfigurationTest extends StarterTest {
    @Autowired private WebApplicationContext context;
    @Autowired private Shop.Stock stock;
    @Autowired private Shop.Mail mail;
    @Autowired private MeterRegistry meters;
    private static final AutoConfigurations AUTO = AutoConfigurations.of(KeylatchAutoConfiguration.class, IdempotencyFilterAutoConfiguration.class);
    private final WebApplicationContextRunner runner = new WebApplicationContextRunner().withConfiguration(AUTO);

    static List<Map<String, Object>> metadata() throws Exception {
        try (InputStream json = KeylatchProperties.class.getResourceAsStream("/META-INF/spring-configuration-metadata.json")) {
            return JsonPath.read(json, "$.properties[*]");
        }
    }

    @Test
    void metadataHasEachPropertyWithItsDefault() throws Exception {
        Map<String, Object> defaults = new HashMap<>();
        TreeSet<String> names = new TreeSet<>();
        for (Map<String, Object> property : metadata()) {
            String name = (String) property.get("name");
            names.add(name);
            if (property.containsKey("sourceType")) {
                Object value = property.getOrDefault("defaultValue", property.get("type").equals("java.time.Duration") ? "1s" : "x");
                defaults.put(name, value instanceof List ? String.join(",", JsonPath.<List<String>>read(value, "$")) : value);
            }
        }
        KeylatchProperties bound = new Binder(List.of(new MapConfigurationPropertySource(defaults)), null, ApplicationConversionService.getSharedInstance())
            .bind("keylatch", Bindable.of(KeylatchProperties.class), new NoUnboundElementsBindHandler(BindHandler.DEFAULT)).get();
        TreeSet<String> fields = new TreeSet<>(List.of("keylatch.advice-order", "management.health.keylatch.enabled"));
        KeylatchProperties unset = new KeylatchProperties();
        for (var field : KeylatchProperties.class.getDeclaredFields()) {
            if (!field.getName().equals("idempotency")) {
                fields.add("keylatch." + kebab(field.getName()));
            }
        }
        for (var field : KeylatchProperties.Idempotency.class.getDeclaredFields()) {
            fields.add("keylatch.idempotency." + kebab(field.getName()));
            assertEquals(field.get(unset.idempotency), field.get(bound.idempotency), field.getName());
        }
        assertEquals(fields, names);
        assertEquals(List.of(unset.lockPrefix, unset.lockTtl), List.of(bound.lockPrefix, bound.lockTtl));
    }

    private static String kebab(String name) {
        return name.replaceAll("([A-Z])", "-$1").toLowerCase();
    }

    @Test
    void healthSaysWhichStoreTheServiceHas() throws Exception {
        MockMvcBuilders.webAppContextSetup(context).build().perform(get("/actuator/health")).andExpect(status().isOk())
            .andExpect(jsonPath("$.components.keylatch.status").value("UP"))
            .andExpect(jsonPath("$.components.keylatch.details.store").value("memory"));
        runner.withPropertyValues("keylatch.url=http://127.0.0.1:1", "keylatch.timeout=100ms").run(down -> {
            Object indicator = down.getBean("keylatchHealthIndicator");
            Object health = indicator.getClass().getInterfaces()[0].getMethod("health").invoke(indicator);
            assertTrue(health.toString().contains("DOWN"), health.toString());
        });
    }

    @Test
    void timesAreByTheTextOfTheAnnotation() {
        stock.order(18L);
        assertTrue(meters.get("keylatch.lock.wait").tags("lock", "order:#{#userId}", "outcome", "acquired").timer().count() > 0);
        assertTrue(meters.get("keylatch.lock.held").tags("lock", "order:#{#userId}", "outcome", "released").timer().count() > 0);
        mail.send(new Shop.Event(UUID.randomUUID().toString(), 1));
        assertTrue(meters.get("keylatch.once").tags("key", "#{#event.id}", "outcome", "done").timer().count() > 0);
    }

    @Test
    void programWithoutTheOthersHasAClientAlone() {
        new ApplicationContextRunner().withConfiguration(AUTO).withPropertyValues("keylatch.idempotency.enabled=true").withClassLoader(new FilteredClassLoader("io.micrometer",
            "org.springframework.integration", "net.javacrumbs", "com.fasterxml.jackson", "tools.jackson", "jakarta.servlet", "javax.servlet",
            "org.springframework.boot.actuate", "org.springframework.boot.health", "org.springframework.transaction")).run(bare -> {
                assertEquals(1, bare.getBeansOfType(Keylatch.class).size());
                assertFalse(List.of(bare.getBeanDefinitionNames()).stream().anyMatch(name -> name.matches("keylatch(Lock|Leader|Health|Meters|Jackson|Idem).*")));
            });
        runner.run(all -> assertTrue(all.getBeansOfType(IdempotencyFilter.class).isEmpty()));
    }

    @Test
    void methodWithAResultThatCannotBeKeptDoesNotRun() {
        new ApplicationContextRunner().withConfiguration(AUTO).withPropertyValues("keylatch.url=" + Service.url()).withBean(Shop.Mail.class).run(bare -> {
            Shop.Mail unkept = bare.getBean(Shop.Mail.class);
            Shop.Event event = new Shop.Event(UUID.randomUUID().toString(), 1);
            assertThrows(IllegalStateException.class, () -> unkept.book(event));
            assertEquals(0, ((Shop.Mail) AopProxyUtils.getSingletonTarget(unkept)).runs);
            unkept.send(event);
        });
    }

    @Test
    void programMayHaveTwoMappersOfJson() throws Exception {
        Class<?> type = Class.forName(ClassUtils.isPresent("tools.jackson.databind.json.JsonMapper", null)
            ? "tools.jackson.databind.json.JsonMapper" : "com.fasterxml.jackson.databind.ObjectMapper");
        runner.withBean("a", type).withBean("b", type).run(two -> assertNull(two.getStartupFailure()));
    }

    @Test
    void beanOfTheProgramCounts() {
        Keylatch own = Keylatch.create();
        runner.withBean(Keylatch.class, () -> own).run(all -> assertEquals(own, all.getBean(Keylatch.class)));
        runner.withPropertyValues("keylatch.url=nowhere").run(all -> assertTrue(all.getStartupFailure().toString().contains("nowhere")));
        runner.withPropertyValues("keylatch.certificate=client.pem")
            .run(all -> assertTrue(all.getStartupFailure().toString().contains("there is no private key for client.pem")));
    }
}
