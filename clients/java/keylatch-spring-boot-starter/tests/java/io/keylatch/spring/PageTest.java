package io.keylatch.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.jayway.jsonpath.JsonPath;
import io.keylatch.client.Keylatch;
import java.io.IOException;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;

/** docs/clients/spring.md has each property, and its examples compile. */
class PageTest {
    private static final String AROUND = "import io.keylatch.spring.*; import java.util.Optional; import org.springframework.context.event.*;\n"
        + "import org.springframework.integration.leader.event.*; import org.springframework.stereotype.*; import org.springframework.transaction.annotation.*;\n"
        + "class Page { record Basket() { } record Order(long userId, Basket basket) { } record OrderPlaced(String id, String address) { }\n"
        + "interface Repository { Optional<Order> findByUser(long userId); Order save(Order order); } Repository repository;\n"
        + "interface Mail { void send(String address); } Mail mail; Thread importer; static class MailRefused extends RuntimeException { }\n"
        + "@interface KafkaListener { String topics(); }\n";
    private final Path top = top(Path.of("").toAbsolutePath());
    private final String page = read("docs/clients/spring.md");

    private static Path top(Path below) {
        return Files.exists(below.resolve("docs/clients/spring.md")) ? below : top(below.getParent());
    }

    private String read(String file) {
        try {
            return Files.readString(top.resolve(file));
        } catch (IOException none) {
            throw new IllegalStateException(none);
        }
    }

    @Test
    void pageHasEachProperty() throws Exception {
        for (Map<String, Object> property : AutoConfigurationTest.metadata()) {
            Object value = property.get("defaultValue");
            Object shown = value instanceof List ? String.join(",", JsonPath.<List<String>>read(value, "$")) : value;
            String row = "| `" + property.get("name") + "` | " + (shown == null || shown.equals("") ? "" : "`" + shown + "` ") + "| " + property.get("description") + " |";
            assertTrue(page.contains(row), row);
        }
    }

    @Test
    void examplesCompile() throws IOException {
        Matcher blocks = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(page);
        int count = 0;
        for (; blocks.find(); count++) {
            String text = AROUND + blocks.group(1) + "}";
            JavaFileObject source = new SimpleJavaFileObject(URI.create("string:///Page.java"), JavaFileObject.Kind.SOURCE) {
                @Override
                public CharSequence getCharContent(boolean isLenient) {
                    return text;
                }
            };
            StringWriter said = new StringWriter();
            ToolProvider.getSystemJavaCompiler().getTask(said, null, null,
                List.of("-nowarn", "-d", Files.createTempDirectory("page").toString()), null, List.of(source)).call();
            assertEquals("", said.toString(), text);
        }
        assertEquals(3, count);
    }

    @Test
    void versionIsThatOfTheClient() {
        String version = "<version>" + Keylatch.VERSION + "</version>";
        for (String file : List.of("docs/clients/spring.md", "clients/java/keylatch-spring-boot-starter/pom.xml",
            "clients/java/keylatch-spring-boot-starter/boot2/pom.xml")) {
            assertTrue(read(file).contains("starter</artifactId>\n  " + version), file);
        }
    }
}
