package io.keylatch.client;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.NoSuchAlgorithmException;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** Reads what a client is set up by. What is wrong is an IllegalArgumentException that names the file. */
final class Settings {
    private static final Pattern KEY =
        Pattern.compile("-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\\s]+)-----END PRIVATE KEY-----");
    private static final char[] NO_PASSWORD = new char[0];

    private Settings() { }

    static Path path(String text) {
        return text.isEmpty() ? null : Path.of(text);
    }

    static String owner() {
        String host = System.getenv("HOSTNAME");
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException unnamed) {
            host = host == null ? "localhost" : host;
        }
        return host + "/" + ProcessHandle.current().pid();
    }

    static void log(String message, Throwable why) {
        System.getLogger("io.keylatch.client").log(System.Logger.Level.DEBUG, message, why);
    }

    static String read(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException unreadable) {
            throw new IllegalArgumentException("cannot read " + file, unreadable);
        }
    }

    static SSLContext tls(Path authorities, Path certificate, Path key) {
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(certificate == null ? null : keys(certificate, key), authorities == null ? null : trust(authorities), null);
            return context;
        } catch (GeneralSecurityException | IOException failed) {
            throw new IllegalArgumentException("the settings of TLS do not fit: " + failed.getMessage(), failed);
        }
    }

    private static TrustManager[] trust(Path file) throws GeneralSecurityException, IOException {
        KeyStore store = empty();
        int count = 0;
        for (Certificate each : certificates(file)) {
            store.setCertificateEntry("authority-" + count++, each);
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory.getTrustManagers();
    }

    private static KeyManager[] keys(Path certificate, Path key) throws GeneralSecurityException, IOException {
        if (key == null) {
            throw new IllegalArgumentException("there is no private key for " + certificate);
        }
        Certificate[] chain = certificates(certificate).toArray(new Certificate[0]);
        KeyStore store = empty();
        store.setKeyEntry("client", privateKey(key), NO_PASSWORD, chain);
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, NO_PASSWORD);
        return factory.getKeyManagers();
    }

    private static KeyStore empty() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static Collection<? extends Certificate> certificates(Path file) {
        String text = read(file);
        try {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            Collection<? extends Certificate> read =
                CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(bytes));
            if (!read.isEmpty()) {
                return read;
            }
        } catch (CertificateException bad) {
            throw new IllegalArgumentException(file + " is not a file of certificates in PEM", bad);
        }
        throw new IllegalArgumentException(file + " has no certificate");
    }

    private static PrivateKey privateKey(Path file) throws GeneralSecurityException {
        Matcher found = KEY.matcher(read(file));
        if (found.find()) {
            PKCS8EncodedKeySpec key = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(found.group(1)));
            for (String kind : new String[] {"RSA", "EC", "Ed25519"}) {
                try {
                    return KeyFactory.getInstance(kind).generatePrivate(key);
                } catch (InvalidKeySpecException | NoSuchAlgorithmException another) {
                    log("keylatch: " + file + " has no key of " + kind, another);
                }
            }
        }
        throw new IllegalArgumentException(file + " has no private key in PKCS#8 (openssl pkcs8 -topk8 -nocrypt makes one)");
    }
}
