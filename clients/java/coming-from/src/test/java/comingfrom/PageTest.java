package comingfrom;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The page shows the files as they are tested, and says how many lines each move changes. */
class PageTest {
    private static final Path SOURCES = Path.of("src/main/java");
    private static final Path SHOP = Path.of("../../../examples/spring");
    private static final Path PAGE = Path.of("../../../docs/coming-from-java.md");

    static List<String> programs() throws IOException {
        try (Stream<Path> files = Files.list(SOURCES.resolve("before"))) {
            return files.map(file -> file.getFileName().toString().replace(".java", "")).sorted().toList();
        }
    }

    @ParameterizedTest
    @MethodSource("programs")
    void atMostTenLinesAreWritten(String program) throws IOException {
        List<String> before = Files.readAllLines(SOURCES.resolve("before/" + program + ".java"));
        List<String> after = Files.readAllLines(SOURCES.resolve("after/" + program + ".java"));
        int same = same(before, after);
        // Of what is written, the name of the package is the tests' own.
        int written = after.size() - same - 1;
        assertTrue(written <= 10 && before.size() <= 60 && after.size() <= 60, written + " lines written");
        String row = "| `" + program + "` | " + written + " | " + (before.size() - same - 1) + " |";
        assertEquals(1, Files.readAllLines(PAGE).stream().filter(line -> line.startsWith(row)).count(), row);
    }

    @Test
    void pageShowsPartsOfTheFiles() throws IOException {
        Map<String, String> files = new TreeMap<>();
        for (Path folder : List.of(SOURCES.resolve("before"), SOURCES.resolve("after"), SHOP.resolve("src/main/java/shop"))) {
            try (Stream<Path> paths = Files.list(folder)) {
                for (Path path : paths.toList()) {
                    files.put(path.toString(), plain(Files.readString(path)));
                }
            }
        }
        files.put("keylatch.toml", plain(Files.readString(SHOP.resolve("keylatch.toml"))));
        Set<String> shown = new HashSet<>();
        Matcher blocks = Pattern.compile("```(?:java|toml)\n(.*?)```", Pattern.DOTALL).matcher(Files.readString(PAGE));
        while (blocks.find()) {
            String block = plain(blocks.group(1));
            List<String> in = files.keySet().stream().filter(name -> files.get(name).contains(block)).toList();
            // RuoYi is no library.
            assertTrue(!in.isEmpty() || block.startsWith("@RepeatSubmit"), block);
            shown.addAll(in);
        }
        for (String program : programs()) {
            for (String version : List.of("before/", "after/")) {
                assertTrue(shown.contains(SOURCES.resolve(version + program + ".java").toString()), version + program);
            }
        }
    }

    /** A text without its indentation. */
    private static String plain(String text) {
        return text.lines().map(String::strip).collect(Collectors.joining("\n"));
    }

    /** How many lines stay, as a diff counts them: the longest common subsequence. */
    private static int same(List<String> before, List<String> after) {
        int[][] longest = new int[before.size() + 1][after.size() + 1];
        for (int i = before.size() - 1; i >= 0; i--) {
            for (int j = after.size() - 1; j >= 0; j--) {
                longest[i][j] = before.get(i).equals(after.get(j)) ? longest[i + 1][j + 1] + 1
                    : Math.max(longest[i + 1][j], longest[i][j + 1]);
            }
        }
        return longest[0][0];
    }
}
