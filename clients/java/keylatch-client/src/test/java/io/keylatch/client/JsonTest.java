package io.keylatch.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;

class JsonTest {
    @Test
    void readsAndWritesWhatItWasGiven() {
        for (String text : new String[] {
            "{\"a\":[1,-2.5,true,false,null,\"ü\\u0001\\\\\\\"\"],\"b\":{},\"c\":[]}", "9007199254740991", "\"\"", "-0.001",
        }) {
            assertEquals(text, Json.write(Json.read(text)));
        }
        assertEquals("\n/ü😀", Json.read(" \"\\n\\/\\u00fc\\uD83D\\uDE00\" "));
        assertEquals(1e30, Json.read("1e30"));
        assertEquals(12345678901234567890.0, Json.read("12345678901234567890"));
    }

    @Test
    void refusesWhatIsNoJson() {
        String deep = String.join("", Collections.nCopies(100_000, "["));
        for (String text : new String[] {
            "", "{", "[1,]", "{\"a\"}", "{a:1}", "01", "1.", ".5", "-", "1e", "+1", "tru", "\"a", "\"\\x\"", "\"\\u12g4\"", "\"\\u+123\"",
            "\"\n\"", "1 2", "NaN", deep,
        }) {
            assertThrows(IllegalArgumentException.class, () -> Json.read(text), text);
        }
    }

    @Test
    void writesNoNumberThatIsNone() {
        Map<String, Object> members = new LinkedHashMap<>();
        members.put("a", Arrays.asList(Double.NaN, 1.5f, null));
        members.put("b", new StringBuilder("text"));
        assertEquals("{\"a\":[null,1.5,null],\"b\":\"text\"}", Json.write(members));
    }
}
