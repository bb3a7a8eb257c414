// What Go makes of forms and of media types.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"mime"
	"net/url"
	"os"
	"strings"
)

func main() {
	var cases [][2]string
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		log.Fatal(err)
	}
	read := make([]string, len(cases))
	for i, one := range cases {
		if one[0] == "form" {
			values, err := url.ParseQuery(one[1])
			read[i] = fmt.Sprint(values, err != nil)
			continue
		}
		kind, parameters, err := mime.ParseMediaType(one[1])
		if strings.EqualFold(parameters["charset"], "utf-8") {
			delete(parameters, "charset")
		}
		read[i] = fmt.Sprint(kind, parameters, err != nil)
	}
	if err := json.NewEncoder(os.Stdout).Encode(read); err != nil {
		log.Fatal(err)
	}
}
