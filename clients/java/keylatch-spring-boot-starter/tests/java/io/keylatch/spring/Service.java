package io.keylatch.spring;

import java.io.File;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Path;

/** The real service, by the binary that KEYLATCH names, for all tests of this JVM. */
final class Service {
    private static final String URL = start();

    private Service() { }


    static String url() {
        return URL;
    }

    private static String start() {
        try {
            int port;
            try (ServerSocket free = new ServerSocket(0)) {
                port = free.getLocalPort();
            }
            String binary = System.getenv().getOrDefault("KEYLATCH", "../../../../../target/debug/keylatch");
            ProcessBuilder builder = new ProcessBuilder(Path.of(binary).toAbsolutePath().toString(), "--listen", "127.0.0.1:" + port, "--store", "memory:");
            builder.environment().keySet().removeIf(name -> name.startsWith("KEYLATCH"));
            Process process = builder.redirectErrorStream(true).redirectOutput(new File("target/keylatch.log")).start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
            while (process.isAlive()) {
                try (Socket ignored = new Socket("127.0.0.1", port)) {
                    return "http://127.0.0.1:" + port;
                } catch (IOException closed) {
                    Thread.onSpinWait();
                }
            }
            throw new IllegalStateException(binary + " has ended: see target/keylatch.log");
        } catch (IOException failed) {
            throw new IllegalStateException("there is no service: KEYLATCH names its binary", failed);
        }
    }
}
