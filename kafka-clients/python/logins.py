"""How a client logs in: by a user's password or a token, over TLS."""

from kafka.net.sasl.oauth import AbstractTokenProvider


class Token(AbstractTokenProvider):
    def __init__(self, token):
        super().__init__()
        self._token = token

    def token(self):
        return self._token


def settings(request):
    """What a client is opened with for the request's `login`; nothing if it has none."""
    login = request.get("login")
    if login is None:
        return {}
    proof = (
        {"sasl_oauth_token_provider": Token(login["token"])}
        if login["mechanism"] == "OAUTHBEARER"
        else {"sasl_plain_username": login["user"], "sasl_plain_password": login["password"]}
    )
    return {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": login["ca"],
        "sasl_mechanism": login["mechanism"],
        **proof,
    }
