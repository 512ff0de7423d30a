//! One HTTP request on a connection of its own.

use std::error::Error;
use std::fmt::Write;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;

use super::{Security, Side, explain_below, open};

/// Sends a request to the host of a URL, and gives the answer or why there is none, in words. The
/// request's own URI is replaced by the path of the URL; a token goes with it if there is one.
pub async fn send<B>(
    url: &Uri,
    security: &Security,
    mut request: Request<B>,
) -> Result<Response<Incoming>, String>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let host = url.authority().map_or("", |host| host.as_str());
    let host = HeaderValue::from_str(host).map_err(|error| error.to_string())?;
    request.headers_mut().insert(HOST, host);
    if let Some(bearer) = security.bearer() {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", bearer.reveal()))
            .map_err(|_| "the bearer token has characters that no header takes".to_owned())?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(|_| "not a path".to_owned())?;
    let stream = open(url, security).await.map_err(|error| words(&error))?;
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| words(&error))?;
    // It goes on until the body of the answer is read.
    let connection = tokio::spawn(connection);
    let error = match sender.send_request(request).await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    drop(sender);
    // Where a node refuses our certificate, the connection knows why, not the request.
    if error.is_canceled()
        && let Ok(Err(deeper)) = connection.await
    {
        return Err(words(&deeper));
    }
    Err(words(&error))
}

/// An error with what lies below it: the outermost alone often says nothing.
pub fn words(error: &(dyn Error + 'static)) -> String {
    if let Some(text) = explain_below(error, Side::Node) {
        return text;
    }
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        let _ = write!(text, ": {cause}");
        inner = cause.source();
    }
    text
}
