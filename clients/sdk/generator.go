// The calls of the check with what openapi-generator makes for Go.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"reflect"

	api "sdk/keylatchapi"
)

func equal(got, want interface{}) {
	if !reflect.DeepEqual(got, want) {
		log.Fatalf("%v, and not %v", got, want)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx, url, name := context.Background(), os.Args[1], os.Args[2]
	configuration := api.NewConfiguration()
	configuration.Servers = api.ServerConfigurations{{URL: url}}
	client := api.NewAPIClient(configuration)
	locks, keys := client.LocksAPI, client.IdempotencyAPI

	wish := api.CreateLock{TtlMs: api.PtrInt64(20_000), Owner: api.PtrString("ann")}
	lease, _, err := locks.CreateLock(ctx, name).CreateLock(wish).Execute()
	must(err)
	equal(*lease.Owner.Get(), "ann")

	_, answer, err := locks.CreateLock(ctx, name).Execute()
	var failed *api.GenericOpenAPIError
	if !errors.As(err, &failed) {
		log.Fatalf("two hold it: %v", err)
	}
	problem := failed.Model().(api.Problem)
	equal([]interface{}{answer.StatusCode, problem.Code, *problem.Holder.Owner.Get()}, []interface{}{409, "lock-held", "ann"})

	renewal := api.RenewLock{TtlMs: api.PtrInt64(30_000)}
	renewed, _, err := locks.RenewLock(ctx, name).LockToken(lease.Token).RenewLock(renewal).Execute()
	must(err)
	equal(renewed.TtlMs, int64(30_000))

	page, _, err := locks.ListLocks(ctx).Prefix(name).Execute()
	must(err)
	equal(len(page.Locks), 1)
	equal(*page.Locks[0].FencingToken, lease.FencingToken)

	_, answer, err = locks.ReleaseLock(ctx, name).LockToken(lease.Token).Execute()
	must(err)
	equal(answer.StatusCode, 204)

	mail := api.BeginRecord{Fingerprint: api.PtrString("a mail")}
	begun, _, err := keys.BeginIdempotency(ctx, name).BeginRecord(mail).Execute()
	must(err)
	equal(begun.State, "in-flight")
	headers := map[string][]string{"content-type": {"text/plain"}}
	sent := api.CompleteRecord{Status: api.PtrInt32(201), Headers: headers, Body: api.PtrString("sent")}
	_, _, err = keys.CompleteIdempotency(ctx, name).LockToken(*begun.Token).CompleteRecord(sent).Execute()
	must(err)
	again, _, err := keys.BeginIdempotency(ctx, name).BeginRecord(mail).Execute()
	must(err)
	equal(again.State, "done")
	equal([]interface{}{again.Answer.Status, again.Answer.Headers, *again.Answer.Body}, []interface{}{int32(201), headers, "sent"})
}
