"""Tokens of an issuer, whose keys are in a file."""

import base64
import json
import os
import subprocess
import time

import pytest

import kera

ISSUER = "https://issuer.example"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(der: bytes, at: int) -> tuple[bytes, int]:
    """An integer of DER in 32 bytes, and where the next one begins."""
    assert der[at] == 2
    end = at + 2 + der[at + 1]
    return der[at + 2 : end].lstrip(b"\0").rjust(32, b"\0"), end


class Issuer:
    """Signs tokens by ES256."""

    def __init__(self, home):
        self.home = home
        self.key = home / "key.pem"
        self.keys = home / "keys.json"
        self.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key)
        point = self.openssl("ec", "-in", self.key, "-pubout", "-outform", "DER")[-64:]
        x, y = base64url(point[:32]), base64url(point[32:])
        key = {"kty": "EC", "crv": "P-256", "use": "sig", "kid": "one", "x": x, "y": y}
        self.keys.write_text(json.dumps({"keys": [key]}))

    @staticmethod
    def openssl(*words, told: bytes = b"") -> bytes:
        return subprocess.run(["openssl", *map(str, words)], input=told, capture_output=True, check=True).stdout

    def token(self, user: str, life: int) -> str:
        now = int(time.time())
        head = {"alg": "ES256", "typ": "JWT", "kid": "one"}
        claims = {"iss": ISSUER, "aud": "kera", "sub": user, "iat": now, "exp": now + life}
        signed = ".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
        der = self.openssl("dgst", "-sha256", "-sign", self.key, told=signed.encode())
        r, at = number(der, 2)
        s, _ = number(der, at)
        return signed + "." + base64url(r + s)

    def put(self, token: str):
        """Puts a token into the place of the one that is in the file, at once."""
        file, new = self.home / "token", self.home / "new"
        new.write_text(token)
        os.rename(new, file)
        return file


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path)


@pytest.fixture
def way(broker, issuer, tmp_path):
    """How to reach a broker that asks for tokens of the issuer."""
    certs = tmp_path / "certs"
    broker.run("certificate", "dev", str(certs), "--name", "127.0.0.1")
    broker.restart(
        "--tls-listeners", "native", "--tls-certificate", str(certs / "server.pem"), "--tls-key", str(certs / "server-key.pem"),
        "--auth-listeners", "native", "--auth-mechanisms", "OAUTHBEARER", "--oauth-issuer", ISSUER, "--oauth-audience", "kera",
        "--oauth-keys", str(issuer.keys), "--oauth-clock-skew", "0s",
    )
    login = kera.Login.with_token_file(issuer.put(issuer.token("ann", 600)))
    way = {"bootstrap": broker.address, "tls": kera.Tls(certs / "ca.pem"), "login": login, "retry_within": 3600.0}
    until = time.monotonic() + 60
    while True:
        try:
            # The broker reads the keys in the background.
            kera.Admin(**way).streams()
            return way
        except kera.LoginError:
            assert time.monotonic() < until


def test_clients_go_on_with_the_next_token_when_theirs_ends(way, issuer):
    kera.Admin(**way).create_stream("s")
    ends = int(time.time()) + 3
    issuer.put(issuer.token("ann", 3))
    with kera.Producer("s", **way) as producer, kera.Reader("s", **way) as reader:
        issuer.put(issuer.token("ann", 600))
        sent = 0
        # Across the end of the token that both began with.
        while sent == 0 or time.time() < ends + 2:
            value = str(sent).encode()
            producer.append(value).result(timeout=60)
            assert reader.next_record(timeout=60).value == value
            sent += 1


def test_a_token_that_proves_nothing_lets_nobody_in(way, issuer):
    assert "token" in repr(way["login"])
    wrong = issuer.token("ann", -10)
    issuer.put(wrong)
    with pytest.raises(kera.LoginError, match="the holder of this token .*expired") as told:
        kera.Producer("s", **way)
    assert not any(part in str(told.value) for part in wrong.split("."))
    issuer.put("two words")
    with pytest.raises(kera.LoginError, match="there is no token: 9 bytes that are none"):
        kera.Admin(**way).streams()
    (issuer.home / "token").unlink()
    with pytest.raises(kera.LoginError, match="there is no token: cannot read"):
        kera.Admin(**way).streams()
    for make in (kera.Admin, kera.Transactions):
        with pytest.raises(kera.SettingError, match="a token is sent as it is"):
            make(bootstrap=way["bootstrap"], login=way["login"])
    issuer.put(issuer.token("ann", 600))
    assert kera.Admin(**way).streams() == []
