module github.com/keylatch/keylatch/clients/go

go 1.19
