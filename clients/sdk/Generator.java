// The calls of the check with what openapi-generator makes for Java, its library `native`.
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.IdempotencyApi;
import org.openapitools.client.api.LocksApi;
import org.openapitools.client.model.BeginRecord;
import org.openapitools.client.model.CompleteRecord;
import org.openapitools.client.model.CreateLock;
import org.openapitools.client.model.IdempotencyRecord;
import org.openapitools.client.model.Problem;
import org.openapitools.client.model.RenewLock;

public class Generator {
    static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError(got + ", and not " + want);
    }

    public static void main(String[] arguments) throws Exception {
        var name = arguments[1];
        var client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        var locks = new LocksApi(client);
        var keys = new IdempotencyApi(client);

        var lease = locks.createLock(name, null, new CreateLock().ttlMs(20_000L).owner("ann"));
        equal(lease.getOwner(), "ann");

        try {
            throw new AssertionError("two hold it: " + locks.createLock(name, null, null));
        } catch (ApiException held) {
            var problem = new ObjectMapper().readValue(held.getResponseBody(), Problem.class);
            equal(held.getCode(), 409);
            equal(problem.getCode(), Problem.CodeEnum.LOCK_HELD);
            equal(problem.getHolder().getOwner(), "ann");
        }

        var renewed = locks.renewLock(name, lease.getToken(), new RenewLock().ttlMs(30_000L));
        equal(renewed.getTtlMs(), 30_000L);

        var page = locks.listLocks(name, null, null);
        equal(page.getLocks().size(), 1);
        equal(page.getLocks().get(0).getFencingToken(), lease.getFencingToken());

        var released = locks.releaseLockWithHttpInfo(name, lease.getToken(), null);
        equal(released.getStatusCode(), 204);

        var mail = new BeginRecord().fingerprint("a mail");
        var begun = keys.beginIdempotency(name, null, null, null, null, null, null, mail);
        equal(begun.getState(), IdempotencyRecord.StateEnum.IN_FLIGHT);
        var headers = Map.of("content-type", List.of("text/plain"));
        var sent = new CompleteRecord().status(201).headers(headers).body("sent");
        keys.completeIdempotency(name, begun.getToken(), sent);
        var again = keys.beginIdempotency(name, null, null, null, null, null, null, mail);
        equal(again.getState(), IdempotencyRecord.StateEnum.DONE);
        equal(again.getAnswer().getStatus(), 201);
        equal(again.getAnswer().getHeaders(), headers);
        equal(again.getAnswer().getBody(), "sent");
    }
}
