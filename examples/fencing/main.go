// Pays an invoice under a lock, in SQLite and in PostgreSQL. Each database refuses a holder that comes late.
//
//	go run . shop.db postgresql://localhost/shop
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
	_ "github.com/lib/pq"
	_ "github.com/mattn/go-sqlite3"
)

// pay reports whether the invoice is paid. It is not where a later holder has been.
func pay(ctx context.Context, database *sql.DB, invoice int, fencingToken uint64) (bool, error) {
	const update = "UPDATE invoice SET state = 'paid', fence = $1 WHERE id = $2 AND fence <= $1"
	result, err := database.ExecContext(ctx, update, fencingToken, invoice)
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

func demonstrate(ctx context.Context, client *keylatch.Client, database *sql.DB) error {
	// This holder is paused, its lease ends, and it does not know.
	late, err := client.Lock(ctx, "invoice-17", keylatch.Wait(30*time.Second))
	if err != nil {
		return err
	}
	late.Release(ctx)

	lease, err := client.Lock(ctx, "invoice-17", keylatch.Wait(30*time.Second))
	if err != nil {
		return err
	}
	defer lease.Close()
	// Its context ends the statement when the lease is lost.
	paid, err := pay(lease.Context(), database, 17, lease.FencingToken())
	if err != nil {
		return err
	}
	twice, err := pay(ctx, database, 17, late.FencingToken())
	if err != nil {
		return err
	}
	fmt.Println(map[bool]string{true: "paid", false: "not paid"}[paid])
	fmt.Println(map[bool]string{true: "paid twice", false: "late holder refused"}[twice])
	return nil
}

func main() {
	client, err := keylatch.New()
	if err != nil {
		log.Fatal(err)
	}
	for at, driver := range []string{"sqlite3", "postgres"} {
		database, err := sql.Open(driver, os.Args[at+1])
		if err != nil {
			log.Fatal(err)
		}
		if err := demonstrate(context.Background(), client, database); err != nil {
			log.Fatal(err)
		}
	}
}
