package io.keylatch.spring;

import java.time.Duration;
import java.util.List;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.util.unit.DataSize;

/** The settings of a program. spring-configuration-metadata.json describes them. What is not set, the client reads from KEYLATCH_. */
@ConfigurationProperties("keylatch")
final class KeylatchProperties {
    List<String> url = List.of();
    String apiKey;
    String apiKeyFile;
    String ca;
    String certificate;
    String certificateKey;
    String owner;
    Duration timeout;
    String lockPrefix = "";
    Duration lockTtl = Duration.ofSeconds(30);
    String leaderRole;
    Idempotency idempotency = new Idempotency();

    void setUrl(List<String> value) { url = value; }
    void setApiKey(String value) { apiKey = value; }
    void setApiKeyFile(String value) { apiKeyFile = value; }
    void setCa(String value) { ca = value; }
    void setCertificate(String value) { certificate = value; }
    void setCertificateKey(String value) { certificateKey = value; }
    void setOwner(String value) { owner = value; }
    void setTimeout(Duration value) { timeout = value; }
    void setLockPrefix(String value) { lockPrefix = value; }
    void setLockTtl(Duration value) { lockTtl = value; }
    void setLeaderRole(String value) { leaderRole = value; }
    void setIdempotency(Idempotency value) { idempotency = value; }

    /** What becomes of a request without a key. */
    enum Missing { REFUSE, DERIVE, PASS }

    /** What a 5xx leaves. */
    enum OnFailure { UNKNOWN, RELEASE }

    /** The settings of the filter. */
    static final class Idempotency {
        boolean enabled;
        List<String> paths = List.of("/**");
        List<String> methods = List.of("POST", "PATCH");
        String header = "Idempotency-Key";
        Missing missing = Missing.REFUSE;
        Duration window = Duration.ofSeconds(10);
        boolean anonymous;
        OnFailure onFailure = OnFailure.UNKNOWN;
        Duration lease = Duration.ofSeconds(30);
        Duration retention = Duration.ofDays(1);
        Duration maxWait = Duration.ofSeconds(30);
        DataSize bodyLimit = DataSize.ofMegabytes(1);
        int order;

        void setEnabled(boolean value) { enabled = value; }
        void setPaths(List<String> value) { paths = value; }
        void setMethods(List<String> value) { methods = value; }
        void setHeader(String value) { header = value; }
        void setMissing(Missing value) { missing = value; }
        void setWindow(Duration value) { window = value; }
        void setAnonymous(boolean value) { anonymous = value; }
        void setOnFailure(OnFailure value) { onFailure = value; }
        void setLease(Duration value) { lease = value; }
        void setRetention(Duration value) { retention = value; }
        void setMaxWait(Duration value) { maxWait = value; }
        void setBodyLimit(DataSize value) { bodyLimit = value; }
        void setOrder(int value) { order = value; }
    }
}
