//! Pages that are read through a proxy: their links and redirects go through the proxy too.

use crate::cluster::{Cluster, Reply};
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use http::{Request, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::convert::Infallible;
use std::io::Read as _;
use std::sync::Arc;

const PAGE: &str = "<html><a href=\"/style.css\">a</a><img src='picture.png'></html>";
const PROXY: &str = "/api/v1/nodes/n1/proxy";

/// `/plain` and `/packed` are pages, `/text` is none, `/moved` is a redirect.
fn answer(path: &str) -> Response<Full<Bytes>> {
    let (kind, encoding, location, page) = match path {
        "/plain" => ("text/html; charset=utf-8", "", "", PAGE.as_bytes().to_vec()),
        "/packed" => ("text/html", "gzip", "", packed(PAGE)),
        "/text" => ("text/plain", "", "", PAGE.as_bytes().to_vec()),
        "/moved" => ("text/html", "", "/plain?x=y", Vec::new()),
        _ => ("text/plain", "", "", b"elsewhere".to_vec()),
    };
    let code = if location.is_empty() { 200 } else { 302 };
    let mut response = Response::builder().status(code).header("content-type", kind);
    for (name, value) in [("content-encoding", encoding), ("location", location)] {
        if !value.is_empty() {
            response = response.header(name, value);
        }
    }
    response.body(Full::new(page.into())).unwrap()
}

fn packed(page: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzEncoder::new(page.as_bytes(), Compression::fast()).read_to_end(&mut bytes).unwrap();
    bytes
}

fn unpacked(reply: &Reply) -> String {
    let mut page = String::new();
    GzDecoder::new(&*reply.bytes).read_to_string(&mut page).unwrap();
    page
}

/// Serves these pages as the agent of node `n1`, the only backend that may have a loopback address.
async fn serve_pages(cluster: &Cluster) {
    let credentials = cluster.running.node_credentials("n1", &["127.0.0.1".to_owned()]).unwrap();
    let serving = &credentials.serving;
    let shown = tls::RenewableCertificate::new(&serving.certificate, &serving.key).unwrap();
    let config = tls::server_config(shown, &credentials.ca_certificate, &["http/1.1"]).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
                Ok::<_, Infallible>(answer(request.uri().path()))
            });
            let connection = hyper::server::conn::http1::Builder::new();
            let connection = connection.serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move { drop(connection.await) });
        }
    });
    cluster.make("/api/v1/nodes", json!({ "metadata": { "name": "n1" } })).await;
    let status = json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
    }});
    cluster.patch("/api/v1/nodes/n1/status", status).await.ok();
}

#[tokio::test]
async fn a_89_links_and_redirects_of_proxied_pages_go_through_the_proxy() {
    let cluster = Cluster::start().await;
    serve_pages(&cluster).await;
    let rewritten = PAGE.replace("/style.css", &format!("{PROXY}/style.css"));

    let plain = cluster.get(&format!("{PROXY}/plain")).await;
    assert_eq!((plain.code, plain.text()), (200, &*rewritten));
    assert_eq!(plain.header("content-type"), "text/html; charset=utf-8");

    let packed = cluster.get_with(&format!("{PROXY}/packed"), &[("accept-encoding", "gzip")]).await;
    assert_eq!((packed.code, packed.header("content-encoding")), (200, "gzip"));
    assert_eq!(unpacked(&packed), rewritten);

    let moved = cluster.get(&format!("{PROXY}/moved")).await;
    assert_eq!((moved.code, moved.header("location")), (302, &*format!("{PROXY}/plain?x=y")));

    let text = cluster.get(&format!("{PROXY}/text")).await;
    assert_eq!(text.text(), PAGE, "only pages are changed");
}
