package io.keylatch.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;

/** The examples of the README compile, and the version is one. */
class ReadmeTest {
    private static final String AROUND = "import io.keylatch.client.*; import java.time.*; import java.util.*; import java.util.concurrent.*;\n"
        + "abstract class Example { Keylatch keylatch; Lease lease; Thread worker; java.sql.Statement statement; abstract void sendMail();\n"
        + "void example() throws Exception {\n%s\n} }\n";

    @Test
    void examplesCompile() throws IOException {
        Matcher blocks = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(Files.readString(Path.of("README.md")));
        int count = 0;
        for (; blocks.find(); count++) {
            String block = blocks.group(1);
            boolean isWhole = block.startsWith("import");
            String fragment = block.contains("Lease lease = ") ? AROUND.replace("Lease lease;", "") : AROUND;
            assertEquals("", compile(isWhole ? "Deploy" : "Example", isWhole ? block : String.format(fragment, block)), block);
        }
        assertTrue(count >= 6, "so few examples: " + count);
    }

    @Test
    void versionIsThatOfTheService() throws IOException {
        assertTrue(Files.readString(Path.of("pom.xml")).contains("<artifactId>keylatch-client</artifactId>\n  <version>" + Keylatch.VERSION + "<"));
        Path service = Path.of("../../../Cargo.toml");
        assumeTrue(Files.exists(service));
        assertTrue(Files.readString(service).contains("\nversion = \"" + Keylatch.VERSION + "\"\n"));
    }

    private static String compile(String name, String text) throws IOException {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StringWriter said = new StringWriter();
        JavaFileObject source = new SimpleJavaFileObject(URI.create("string:///" + name + ".java"), JavaFileObject.Kind.SOURCE) {
            @Override
            public CharSequence getCharContent(boolean isLenient) {
                return text;
            }
        };
        String into = Files.createTempDirectory("readme").toString();
        List<String> options = List.of("--release", "11", "-cp", "target/classes", "-d", into, "-nowarn");
        compiler.getTask(said, null, null, options, null, List.of(source)).call();
        return said.toString();
    }
}
