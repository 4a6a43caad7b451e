package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// login is how a client proves over TLS who it is.
type login struct {
	CA        string `json:"ca"`
	Mechanism string `json:"mechanism"`
	User      string `json:"user"`
	Password  string `json:"password"`
	Token     string `json:"token"`
}

// options are what a client is opened with; none without a login.
func (l *login) options() ([]kgo.Opt, error) {
	if l == nil {
		return nil, nil
	}
	pem, err := os.ReadFile(l.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", l.CA)
	}
	scrams := scram.Auth{User: l.User, Pass: l.Password}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: l.User, Pass: l.Password}.AsMechanism(),
		"SCRAM-SHA-256": scrams.AsSha256Mechanism(),
		"SCRAM-SHA-512": scrams.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: l.Token}.AsMechanism(),
	}
	return []kgo.Opt{
		kgo.DialTLSConfig(&tls.Config{RootCAs: roots}),
		kgo.SASL(mechanisms[l.Mechanism]),
	}, nil
}
