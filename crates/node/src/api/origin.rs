//! What web pages make browsers send. A page of any site can have its reader's browser call this
//! port, also on the reader's own machine; nothing but the headers tells such a call from others.
//!
//! - A page of another site is refused: its `Origin` is that of no member, or `Sec-Fetch-Site`
//!   says so.
//! - What a page can send without being asked for is no JSON: such a POST is taken only where no
//!   header is that of a browser, as from `curl -d`.
//! - Whoever owns a name can make it mean this machine. Where nobody has to show who they are,
//!   `Host` must be a name of this node. An address cannot be made to mean another machine.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use conclave_wire::Cluster;

use super::errors::Failure;

/// Paths whose host is not checked: probes ask under any name.
const ANY_HOST: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// This name in the settings stands for all names.
const ANY_NAME: &str = "*";
/// By this header a browser says which site its page is of.
const SITE: &str = "sec-fetch-site";
/// How the headers begin by which a browser says what it does.
const BROWSER: &str = "sec-fetch-";
/// The most characters of a refused header that are told.
const TOLD_MAX: usize = 100;

/// Scheme, host and port.
type Origin = (String, String, u16);

/// Whose pages may call, and under which names.
#[derive(Clone, Debug)]
pub(crate) struct Origins {
    /// The API of each member.
    members: BTreeSet<Origin>,
    /// The names of the node, in lower case.
    names: BTreeSet<String>,
    any_name: bool,
}

impl Origins {
    /// Members' own pages may call, under their names in the cluster file and under these.
    pub(crate) fn new(cluster: &Cluster, names: &[String]) -> Self {
        let apis = cluster.nodes.iter().map(|node| node.api.as_str());
        let members: BTreeSet<Origin> = apis.filter_map(origin).collect();
        let hosts = members.iter().map(|(_, host, _)| host.clone());
        let given = names.iter().map(|name| plain(name));
        Self {
            names: hosts.chain(given).chain(["localhost".to_owned()]).collect(),
            members,
            any_name: names.iter().any(|name| name == ANY_NAME),
        }
    }

    /// Refuses what a page of another site sent, and what has no JSON although a browser sent it.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), Failure> {
        let headers = request.headers();
        let mut known = false;
        for from in headers.get_all(header::ORIGIN) {
            if !self.is_ours(from, request) {
                return Err(Failure::ForeignOrigin(told(from)));
            }
            known = true;
        }
        let site = headers.get(SITE);
        if let Some(site) = site
            && !known
            && !matches!(site.as_bytes(), b"same-origin" | b"none")
        {
            return Err(Failure::ForeignOrigin(told(site)));
        }
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        if !reads && !is_json(headers) && headers.keys().any(is_of_browser) {
            return Err(Failure::NotJson);
        }
        Ok(())
    }

    /// Refuses a call under a name that is none of this node's.
    pub(crate) fn check_host<B>(&self, request: &Request<B>) -> Result<(), Failure> {
        if self.any_name || ANY_HOST.contains(&request.uri().path()) {
            return Ok(());
        }
        for host in hosts(request) {
            let name = host.parse::<Authority>();
            if !name.is_ok_and(|name| self.is_name(name.host())) {
                return Err(Failure::ForeignHost(host.chars().take(TOLD_MAX).collect()));
            }
        }
        Ok(())
    }

    /// Whether a page is a member's: of its API as the cluster file has it, or of the very host
    /// that is called, if that is one of our names.
    fn is_ours<B>(&self, from: &HeaderValue, request: &Request<B>) -> bool {
        let Some(from) = from.to_str().ok().and_then(origin) else {
            return false;
        };
        let same = || {
            let mut called = hosts(request).into_iter();
            called.any(|host| origin(&format!("{}://{host}", from.0)).as_ref() == Some(&from))
        };
        self.members.contains(&from) || (self.is_name(&from.1) && same())
    }

    fn is_name(&self, host: &str) -> bool {
        let host = plain(host);
        self.any_name || self.names.contains(&host) || host.parse::<IpAddr>().is_ok()
    }
}

/// The hosts that a request names.
fn hosts<B>(request: &Request<B>) -> Vec<String> {
    let header = request.headers().get_all(header::HOST).iter();
    // What is no text is no name of ours.
    let header = header.map(|host| host.to_str().unwrap_or("?").to_owned());
    let asked = request.uri().authority().map(ToString::to_string);
    header.chain(asked).collect()
}

/// The origin that a URL is of.
fn origin(url: &str) -> Option<Origin> {
    let url: Uri = url.parse().ok()?;
    let usual = match url.scheme_str()? {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let port = url.port_u16().unwrap_or(usual);
    Some((url.scheme_str()?.to_owned(), plain(url.host()?), port))
}

/// A host as it is compared.
fn plain(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn is_of_browser(name: &HeaderName) -> bool {
    [header::ORIGIN, header::REFERER].contains(name) || name.as_str().starts_with(BROWSER)
}

fn told(value: &HeaderValue) -> String {
    let text = String::from_utf8_lossy(value.as_bytes());
    text.chars().take(TOLD_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(names: &[&str]) -> Origins {
        let text = r#"
            name = "test"
            epoch = 1
            quorum = "majority"
            [[nodes]]
            id = 1
            peer = "127.0.0.1:7001"
            api = "http://127.0.0.1:8001"
            [[nodes]]
            id = 2
            peer = "127.0.0.1:7002"
            api = "http://Two.example:80"
        "#;
        let cluster = Cluster::parse(text).unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Origins::new(&cluster, &names)
    }

    fn request(method: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri("/v1/locks/a");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn code(result: Result<(), Failure>) -> &'static str {
        result.err().map_or("ok", |failure| failure.code())
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let origins = origins(&["locks.example"]);
        let get = |headers: &[(&str, &str)]| code(origins.check(&request("GET", headers)));
        assert_eq!(get(&[]), "ok");
        for ours in [
            "http://127.0.0.1:8001",
            "http://two.example",
            "http://TWO.example:80",
        ] {
            assert_eq!(get(&[("origin", ours)]), "ok", "{ours}");
            let across = [("origin", ours), ("sec-fetch-site", "same-site")];
            assert_eq!(get(&across), "ok", "{ours}");
        }
        for theirs in [
            "http://evil.example",
            "http://127.0.0.1:3000",
            "https://127.0.0.1:8001",
            "http://two.example.evil.example",
            "null",
            "",
            "file://",
            "http://[::1",
        ] {
            assert_eq!(get(&[("origin", theirs)]), "foreign_origin", "{theirs}");
        }
        for (site, expected) in [
            ("same-origin", "ok"),
            ("none", "ok"),
            ("same-site", "foreign_origin"),
            ("cross-site", "foreign_origin"),
            ("", "foreign_origin"),
        ] {
            assert_eq!(get(&[("sec-fetch-site", site)]), expected, "{site}");
        }
        // The very host that is called, if it is ours.
        let own = |host: &str| {
            let origin = format!("https://{host}");
            get(&[("host", host), ("origin", &origin)])
        };
        for ours in ["localhost:99", "locks.example", "10.0.0.7:1", "[::1]:5"] {
            assert_eq!(own(ours), "ok", "{ours}");
        }
        assert_eq!(own("evil.example"), "foreign_origin");
    }

    #[test]
    fn a_page_sends_json_or_nothing() {
        let origins = origins(&[]);
        let post = |headers: &[(&str, &str)]| code(origins.check(&request("POST", headers)));
        let json = ("content-type", "application/json; charset=utf-8");
        let form = ("content-type", "application/x-www-form-urlencoded");
        let ours = ("origin", "http://127.0.0.1:8001");
        for headers in [&[form][..], &[], &[json, ours], &[json, ("referer", "x")]] {
            assert_eq!(post(headers), "ok", "{headers:?}");
        }
        for mark in [
            ours,
            ("referer", "http://127.0.0.1:8001/"),
            ("sec-fetch-mode", "no-cors"),
            ("sec-fetch-site", "none"),
        ] {
            for kind in [
                form,
                ("content-type", "text/plain"),
                ("content-type", "application/jsonx"),
                ("content-type", "application/grpc"),
            ] {
                assert_eq!(post(&[mark, kind]), "not_json", "{mark:?} {kind:?}");
            }
            assert_eq!(post(&[mark]), "not_json", "{mark:?}");
        }
    }

    #[test]
    fn a_host_is_a_name_of_ours_or_an_address() {
        let strict = origins(&["Locks.example."]);
        let open = origins(&["*"]);
        let at = |origins: &Origins, host: &str| {
            code(origins.check_host(&request("GET", &[("host", host)])))
        };
        for ours in [
            "127.0.0.1:8001",
            "10.1.2.3",
            "[::1]:8001",
            "localhost",
            "LOCALHOST:1",
            "two.example:8080",
            "locks.example",
            "locks.example.",
        ] {
            assert_eq!(at(&strict, ours), "ok", "{ours}");
        }
        for theirs in [
            "evil.example",
            "127.0.0.1.evil.example",
            "a b",
            "",
            "x@localhost.evil",
        ] {
            assert_eq!(at(&strict, theirs), "foreign_host", "{theirs}");
        }
        assert_eq!(at(&open, "evil.example"), "ok");
        // A request for a whole URL, as those of HTTP/2 are.
        let whole = Request::builder().uri("http://evil.example/v1/locks");
        let whole = whole.body(()).unwrap();
        assert_eq!(code(strict.check_host(&whole)), "foreign_host");
        for path in ANY_HOST {
            let probe = Request::builder().uri(path).header("host", "evil.example");
            assert_eq!(code(strict.check_host(&probe.body(()).unwrap())), "ok");
        }
    }
}
