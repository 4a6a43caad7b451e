//! Looks at the first bytes of a connection, which tell what it speaks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kera_rpc::stream::Stream;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

const LONGEST: Duration = Duration::from_millis(20);
/// Far more than any step takes; who waits for it to be over fails.
const PATIENCE: Duration = Duration::from_secs(60);
const WORD: &[u8] = b"KERA";

/// Both ends of a connection, the second of whom accepted it.
async fn plain() -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (here, there) = tokio::join!(TcpStream::connect(address), listener.accept());
    (
        here.expect("connects").into(),
        there.expect("accepts").0.into(),
    )
}

/// The same with TLS.
async fn with_tls() -> (Stream, Stream) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a key and its certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("an authority");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (here, there) = plain().await;
    let (Stream::Plain(here), Stream::Plain(there)) = (here, there) else {
        panic!("they have no TLS yet");
    };
    let name = "localhost".try_into().expect("a name");
    let (here, there) = tokio::join!(
        Stream::connect(here, Arc::new(client), name),
        Stream::accept(there, Arc::new(server))
    );
    (here.expect("a session"), there.expect("a session"))
}

/// Whether the word comes; `seen` hears how many bytes each look had.
async fn look(stream: &Stream, seen: &watch::Sender<usize>) -> io::Result<bool> {
    let mut buffer = [0; WORD.len()];
    let decide = |there: &[u8]| {
        seen.send_replace(there.len());
        (there.len() == WORD.len() || !WORD.starts_with(there)).then_some(there == WORD)
    };
    let looked = timeout(PATIENCE, stream.look(&mut buffer, LONGEST, decide));
    looked.await.expect("it waits for who has gone")
}

async fn begins_and_goes(mut here: Stream, there: Stream) {
    let (sender, mut seen) = watch::channel(0);
    let begun = async {
        here.write_all(&WORD[..2]).await.expect("it is taken");
        let begun = seen.wait_for(|seen| *seen == 2).await;
        begun.expect("it is looked at");
        here.shutdown().await.expect("it ends");
    };
    let (looked, ()) = tokio::join!(look(&there, &sender), begun);
    let error = looked.expect_err("the word did not come");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

async fn comes_in_parts(mut here: Stream, there: Stream) {
    let (sender, mut seen) = watch::channel(0);
    let parts = async {
        here.write_all(&WORD[..3]).await.expect("it is taken");
        let begun = seen.wait_for(|seen| *seen == 3).await;
        begun.expect("it is looked at");
        here.write_all(&WORD[3..]).await.expect("it is taken");
        here.shutdown().await.expect("it ends");
    };
    let (looked, ()) = tokio::join!(look(&there, &sender), parts);
    assert!(looked.expect("it came"));
    // Nothing was taken.
    assert!(look(&there, &sender).await.expect("it is still there"));
}

#[tokio::test]
async fn who_begins_a_word_and_goes_is_not_waited_for() {
    let (here, there) = plain().await;
    begins_and_goes(here, there).await;
    let (here, there) = with_tls().await;
    begins_and_goes(here, there).await;
}

#[tokio::test]
async fn a_word_may_come_in_parts_and_its_sender_go() {
    let (here, there) = plain().await;
    comes_in_parts(here, there).await;
    let (here, there) = with_tls().await;
    comes_in_parts(here, there).await;
}

#[tokio::test]
async fn another_word_is_told_by_its_first_letter() {
    let (mut here, there) = plain().await;
    let (sender, _seen) = watch::channel(0);
    here.write_all(b"G").await.expect("it is taken");
    assert!(!look(&there, &sender).await.expect("it came"));
}
