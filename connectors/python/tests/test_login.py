"""Users with passwords, and TLS."""

import pytest

import kera

from conftest import PASSWORD


def use_all(name, **way):
    """Writes a record, and reads it in each way there is."""
    admin = kera.Admin(**way)
    admin.create_stream(name)
    with kera.Producer(name, **way) as producer:
        producer.append(b"one").result(timeout=60)
    with kera.Producer(name, transactional_id=name, **way) as producer, producer.transaction():
        producer.append(b"two")
    with kera.Reader(name, **way) as reader:
        assert [reader.next_record(timeout=60).value for _ in range(2)] == [b"one", b"two"]
    with kera.Consumer(name, name, **way) as consumer:
        consumer.commit(consumer.next_batch(timeout=60))
    assert [group.group for group in admin.groups() if group.stream == name] == [name]
    assert kera.Transactions(**way).prepared() == []
    admin.delete_stream(name)


def test_passwords_are_proved_by_each_mechanism_that_hides_them(with_users):
    for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
        login = kera.Login("ann", PASSWORD, mechanism=mechanism)
        assert PASSWORD not in repr(login) and "ann" in repr(login)
        use_all("by-" + mechanism, bootstrap=with_users.address, login=login)


def test_the_password_itself_needs_tls(with_users):
    plain = kera.Login("ann", PASSWORD, mechanism="PLAIN")
    for make in (kera.Admin, kera.Transactions, lambda **way: kera.Producer("s", **way)):
        with pytest.raises(kera.SettingError, match="give tls, or use SCRAM-SHA-512"):
            make(bootstrap=with_users.address, login=plain)
    with pytest.raises(kera.SettingError, match="use SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN"):
        kera.Login("ann", PASSWORD, mechanism="MD5")


def test_who_is_wrong_is_told_so_at_once_and_without_the_password(with_users):
    address = with_users.address
    for user, password in (("ann", "guessed"), ("nobody", PASSWORD)):
        login = kera.Login(user, password)
        for make in (
            lambda way: kera.Admin(**way).create_stream("s"),
            lambda way: kera.Producer("s", **way),
            lambda way: kera.Producer("s", transactional_id="s", **way),
            lambda way: kera.Consumer("s", "g", **way),
            lambda way: kera.Reader("s", **way),
            lambda way: kera.Transactions(**way).prepared(),
        ):
            # Whoever tries again does so for longer than a test may take.
            with pytest.raises(kera.LoginError, match="the user or the password is wrong; check") as told:
                make({"bootstrap": address, "login": login, "retry_within": 3600.0})
            assert str(told.value).startswith(f"broker {address} does not let user {user} in: ")
            assert "guessed" not in str(told.value) and PASSWORD not in str(told.value)
            assert not told.value.is_retryable and not told.value.is_uncertain
            assert isinstance(told.value, (kera.ConnectionFailed, PermissionError))
    with pytest.raises(kera.KeraError, match="asks who you are"):
        kera.Admin(bootstrap=address, retry_within=3600.0).streams()


def test_who_reads_is_told_when_the_user_is_gone(with_users, tmp_path):
    way = {"bootstrap": with_users.address, "login": kera.Login("ann", PASSWORD), "retry_within": 3600.0}
    kera.Admin(**way).create_stream("orders")
    with kera.Reader("orders", **way) as reader:
        with kera.Producer("orders", **way) as producer:
            producer.append(b"one").result(timeout=60)
        assert reader.next_record(timeout=60).value == b"one"
        password = tmp_path / "password"
        password.write_text(PASSWORD)
        with_users.run("user", "delete", "ann", "--yes", "--user", "ann", "--user-password-file", str(password))
        with_users.restart()
        with pytest.raises(kera.LoginError, match="user ann .* stream orders ") as told:
            reader.next_record(timeout=120)
        assert not told.value.is_retryable


def test_tls_by_the_certificates_of_the_program(with_users, tmp_path):
    certs = tmp_path / "certs"
    with_users.run("certificate", "dev", str(certs), "--name", "127.0.0.1")
    with_users.restart(
        "--tls-listeners", "native", "--tls-certificate", str(certs / "server.pem"),
        "--tls-key", str(certs / "server-key.pem"),
    )
    tls = kera.Tls(certs / "ca.pem")
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        login = kera.Login("ann", PASSWORD, mechanism=mechanism)
        use_all("by-" + mechanism, bootstrap=with_users.address, login=login, tls=tls)
    login = kera.Login("ann", PASSWORD)
    with pytest.raises(kera.KeraError):
        kera.Admin(bootstrap=with_users.address, login=login, retry_within=0.0).streams()
    other = tmp_path / "other"
    with_users.run("certificate", "dev", str(other), "--name", "127.0.0.1")
    # Whoever tries again does so for longer than a test may take.
    way = {"bootstrap": with_users.address, "retry_within": 3600.0}
    for use in (lambda **way: kera.Admin(**way).streams(), lambda **way: kera.Reader("s", **way)):
        with pytest.raises(kera.TlsError, match=r"not trusted here; name .* \(tls=kera.Tls\(FILE\)\)") as told:
            use(login=login, tls=kera.Tls(other / "ca.pem"), **way)
        assert not told.value.is_retryable and isinstance(told.value, kera.ConnectionFailed)
        with pytest.raises(kera.TlsError, match=r"wants TLS at this address; name .* \(tls=kera.Tls\(FILE\)\)"):
            use(**way)
    with pytest.raises(kera.SettingError, match="nowhere.pem"):
        kera.Tls(tmp_path / "nowhere.pem")
