use super::*;

/// The example of RFC 7677, section 3.
#[test]
fn the_example_of_the_rfc_is_played() {
    let mechanism = Mechanism::Sha256;
    let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let stored = Credential::of_password(mechanism, b"pencil", salt, 4096).unwrap();
    let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
    let (client, first) = Client::begin_with(mechanism, "user", b"pencil", nonce);
    assert_eq!(first, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
    let own = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let find = |user: &str| {
        assert_eq!(user, "user");
        (stored, true)
    };
    let (exchange, challenge) =
        Exchange::begin_with(mechanism, first.as_bytes(), own, find).unwrap();
    assert_eq!(
        challenge,
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    );
    let (client, proof) = client.answer(challenge.as_bytes()).unwrap();
    assert_eq!(
        proof,
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    );
    let (user, signature) = exchange.end(proof.as_bytes()).unwrap();
    assert_eq!(user, "user");
    assert_eq!(signature, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    client.end(signature.as_bytes()).unwrap();
}

fn stored(mechanism: Mechanism, password: &[u8]) -> Credential {
    Credential::of_password(mechanism, password, b"salt".to_vec(), 4096).unwrap()
}

/// Plays an exchange to its end.
fn play(
    mechanism: Mechanism,
    (user, password): (&str, &[u8]),
    found: (Credential, bool),
) -> Result<String> {
    let (client, first) = Client::begin(mechanism, user, password)?;
    let (exchange, challenge) = Exchange::begin(mechanism, first.as_bytes(), |_| found)?;
    let (client, proof) = client.answer(challenge.as_bytes())?;
    let (user, signature) = exchange.end(proof.as_bytes())?;
    client.end(signature.as_bytes())?;
    Ok(user)
}

#[test]
fn whoever_knows_the_password_is_let_in_and_nobody_else() {
    for mechanism in Mechanism::ALL {
        let there = |password| (stored(mechanism, password), true);
        for user in ["ann", "a,b=c", "J\u{fc}rgen"] {
            let played = play(mechanism, (user, b"right"), there(b"right"));
            assert_eq!(played.as_deref(), Ok(user));
        }
        let wrong = play(mechanism, ("ann", b"wrong"), there(b"right"));
        assert_eq!(wrong, Err(ScramError::WrongProof));
        // The password of a user who is not there is right and does not count.
        let nobody = (stored(mechanism, b"right"), false);
        let played = play(mechanism, ("ann", b"right"), nobody);
        assert_eq!(played, Err(ScramError::WrongProof));
        assert!(stored(mechanism, b"right").is_of(mechanism, b"right"));
        assert!(!stored(mechanism, b"right").is_of(mechanism, b"wrong"));
    }
}

#[test]
fn a_broker_that_does_not_know_the_password_is_found_out() {
    let mechanism = Mechanism::Sha256;
    let mut false_one = stored(mechanism, b"right");
    false_one.server_key = vec![7; 32];
    let played = play(mechanism, ("ann", b"right"), (false_one, true));
    assert_eq!(played, Err(ScramError::WrongServer));
}

#[test]
fn a_proof_of_another_exchange_proves_nothing() {
    let mechanism = Mechanism::Sha512;
    let there = || (stored(mechanism, b"right"), true);
    let (client, first) = Client::begin(mechanism, "ann", b"right").unwrap();
    let (once, challenge) = Exchange::begin(mechanism, first.as_bytes(), |_| there()).unwrap();
    let (_, proof) = client.answer(challenge.as_bytes()).unwrap();
    once.end(proof.as_bytes()).unwrap();
    // The same first message, as whoever listened has it.
    let (again, _) = Exchange::begin(mechanism, first.as_bytes(), |_| there()).unwrap();
    assert_eq!(again.end(proof.as_bytes()), Err(ScramError::WrongProof));
}

#[test]
fn what_is_no_message_or_asks_for_more_is_refused() {
    let begin = |message: &[u8]| {
        let find = |_: &str| (stored(Mechanism::Sha256, b"p"), true);
        Exchange::begin(Mechanism::Sha256, message, find).map(|(exchange, _)| exchange.user)
    };
    assert_eq!(begin(b"n,,n=ann,r=x").as_deref(), Ok("ann"));
    assert_eq!(begin(b"y,a=ann,n=ann,r=x").as_deref(), Ok("ann"));
    let not_offered: [&[u8]; 4] = [
        b"p=tls-exporter,,n=ann,r=x",
        b"n,a=bob,n=ann,r=x",
        b"n,,m=1,n=ann,r=x",
        b"n,,n=ann,r=x,tokenauth=true",
    ];
    for message in not_offered {
        assert_eq!(begin(message), Err(ScramError::NotOffered), "{message:?}");
    }
    let long = format!("n,,n=ann,r={}", "x".repeat(MAX_MESSAGE));
    let name = format!("n,,n={},r=x", "x".repeat(MAX_NAME + 1));
    let malformed: [&[u8]; 12] = [
        b"",
        b"n",
        b"n,,",
        b"n,,n=ann",
        b"n,,n=,r=x",
        b"n,,n=ann,r=",
        b"n,,n=ann,r=\x01",
        b"n,,n=a=ann,r=x",
        b"n,,n=a\nb,r=x",
        b"x,,n=ann,r=x",
        long.as_bytes(),
        name.as_bytes(),
    ];
    for message in malformed {
        assert_eq!(begin(message), Err(ScramError::Malformed), "{message:?}");
    }
    let end = |message: &str| {
        let find = |_: &str| (stored(Mechanism::Sha256, b"p"), true);
        let (exchange, _) =
            Exchange::begin_with(Mechanism::Sha256, b"n,,n=ann,r=x", "y", find).unwrap();
        exchange.end(message.as_bytes()).unwrap_err()
    };
    let proof = STANDARD.encode([0; 32]);
    assert_eq!(
        end(&format!("c=biws,r=xy,p={proof}")),
        ScramError::WrongProof
    );
    for nonce in ["xz", "", "x", "y"] {
        let message = format!("c=biws,r={nonce},p={proof}");
        assert_eq!(end(&message), ScramError::WrongProof, "{nonce}");
    }
    for message in [
        String::new(),
        "c=biws,r=xy".to_owned(),
        format!("c=eSws,r=xy,p={proof}"),
        format!("c=biws,r=xy,x=1,p={proof}"),
        "c=biws,r=xy,p=AAAA".to_owned(),
        "c=biws,r=xy,p=%".to_owned(),
    ] {
        assert_eq!(end(&message), ScramError::Malformed, "{message}");
    }
}

#[test]
fn a_client_does_not_calculate_for_as_long_as_a_broker_likes() {
    let answer = |challenge: &str| {
        let nonce = "own".to_owned();
        let (client, _) = Client::begin_with(Mechanism::Sha256, "ann", b"p", nonce);
        client.answer(challenge.as_bytes()).map(|(_, proof)| proof)
    };
    assert!(answer("r=ownx,s=c2FsdA==,i=4096").is_ok());
    for challenge in [
        "r=ownx,s=c2FsdA==,i=1000000000",
        "r=ownx,s=c2FsdA==,i=1",
        "r=own,s=c2FsdA==,i=4096",
        "r=other,s=c2FsdA==,i=4096",
    ] {
        assert_eq!(answer(challenge), Err(ScramError::Malformed), "{challenge}");
    }
}
