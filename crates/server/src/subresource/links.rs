//! Rewrites links in a backend's HTML and `Location` headers, so that they go through the proxy.
//!
//! A page that was written for `/` links to `/style.css`; behind the proxy that has to be `/api/v1/…/proxy/style.css`. Pure.
//! Upstream: `apimachinery/pkg/util/proxy`, with the same list of attributes. As upstream, links in style sheets and scripts
//! are not changed.

/// Attributes that contain links, by element.
const LINKS: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is text, even if it looks like markup.
const RAW: [&str; 10] = [
    "iframe",
    "noembed",
    "noframes",
    "noscript",
    "plaintext",
    "script",
    "style",
    "textarea",
    "title",
    "xmp",
];

pub(super) struct Links {
    /// The path of the proxy, without a trailing slash.
    pub(super) prefix: String,
    /// `host:port` of the backend, which may be in absolute links.
    pub(super) backends: Vec<String>,
    /// The client's `Host`.
    pub(super) host: String,
}

impl Links {
    /// The rewritten link; none if it needs no change.
    pub(super) fn moved(&self, link: &str) -> Option<String> {
        let (origin, path) = split(link);
        let host = origin.rsplit_once("//").map_or("", |(_, host)| host);
        let own = host.is_empty() || host == self.host || self.backends.iter().any(|b| b == host);
        if !own || !path.starts_with('/') {
            return None;
        }
        // Keeps the host by which the client calls us.
        let origin = if host == self.host { origin } else { "" };
        let inside = path.strip_prefix(self.prefix.as_str());
        let prefix = match inside {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '?', '#']) => "",
            _ => self.prefix.as_str(),
        };
        let moved = format!("{origin}{prefix}{path}");
        (moved != link).then_some(moved)
    }

    /// The page with rewritten links. Nothing else changes.
    pub(super) fn page(&self, page: &[u8]) -> Vec<u8> {
        let mut moved = Vec::with_capacity(page.len());
        let mut copied = 0;
        let mut at = 0;
        while let Some(open) = find(page, at, b"<") {
            if page[open..].starts_with(b"<!--") {
                at = find(page, open + 4, b"-->").map_or(page.len(), |end| end + 3);
                continue;
            }
            let Some(tag) = Tag::read(page, open + 1) else {
                at = open + 1;
                continue;
            };
            for (start, end) in &tag.links {
                let link = String::from_utf8_lossy(&page[*start..*end]);
                if let Some(link) = self.moved(&link) {
                    moved.extend_from_slice(&page[copied..*start]);
                    moved.extend_from_slice(self.escaped(&link).as_bytes());
                    copied = *end;
                }
            }
            at = tag.end;
            if RAW.contains(&tag.name.as_str()) {
                at = end_of_raw(page, at, &tag.name);
            }
        }
        moved.extend_from_slice(&page[copied..]);
        moved
    }

    /// Text from the page is already escaped; the request's path is not.
    fn escaped(&self, link: &str) -> String {
        let Some((origin, path)) = link.split_once(self.prefix.as_str()) else {
            return link.to_owned();
        };
        let mut text = origin.to_owned();
        for c in self.prefix.chars() {
            match c {
                '&' => text.push_str("&amp;"),
                '<' => text.push_str("&lt;"),
                '>' => text.push_str("&gt;"),
                '"' => text.push_str("&#34;"),
                '\'' => text.push_str("&#39;"),
                c => text.push(c),
            }
        }
        text + path
    }
}

/// `scheme://host`, `//host` or nothing, and what follows it.
fn split(link: &str) -> (&str, &str) {
    let scheme = match link.find("//") {
        Some(0) => 0,
        Some(slashes) => {
            let is_scheme = link[..slashes].strip_suffix(':').is_some_and(|scheme| {
                scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                    && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
            });
            if !is_scheme {
                return ("", link);
            }
            slashes
        }
        None => return ("", link),
    };
    let host = scheme + 2;
    let end = link[host..].find(['/', '?', '#']).map_or(link.len(), |end| host + end);
    link.split_at(end)
}

/// A start tag.
struct Tag {
    name: String,
    /// The ranges of the values of link attributes.
    links: Vec<(usize, usize)>,
    /// The end of the tag.
    end: usize,
}

impl Tag {
    /// `at` is the position after the `<`. None if this is not a complete start tag.
    fn read(page: &[u8], at: usize) -> Option<Tag> {
        let name_end = skip(page, at, |b| !b.is_ascii_whitespace() && b != b'/' && b != b'>');
        let name = page
            .get(at..name_end)
            .filter(|name| name.first().is_some_and(u8::is_ascii_alphabetic))?;
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let wanted = LINKS.iter().find(|(element, _)| *element == name).map_or(&[][..], |e| e.1);
        let mut links = Vec::new();
        let mut at = name_end;
        loop {
            at = skip(page, at, |b| b.is_ascii_whitespace() || b == b'/');
            if *page.get(at)? == b'>' {
                return Some(Tag { name, links, end: at + 1 });
            }
            let start = at;
            // A leading equals sign is part of the name.
            at = skip(page, at + 1, |b| !b.is_ascii_whitespace() && !b"/>=".contains(&b));
            let attribute = String::from_utf8_lossy(&page[start..at]).to_ascii_lowercase();
            let equals = skip(page, at, |b| b.is_ascii_whitespace());
            if page.get(equals) != Some(&b'=') {
                continue;
            }
            let start = skip(page, equals + 1, |b| b.is_ascii_whitespace());
            let value = match *page.get(start)? {
                quote @ (b'"' | b'\'') => {
                    let end = skip(page, start + 1, |b| b != quote);
                    at = end + 1;
                    (start + 1, end)
                }
                _ => {
                    at = skip(page, start, |b| !b.is_ascii_whitespace() && b != b'>');
                    (start, at)
                }
            };
            page.get(value.1)?;
            if wanted.contains(&attribute.as_str()) {
                links.push(value);
            }
        }
    }
}

fn skip(page: &[u8], at: usize, over: impl Fn(u8) -> bool) -> usize {
    let rest = page.get(at..).unwrap_or_default();
    rest.iter().position(|byte| !over(*byte)).map_or(page.len(), |found| at + found)
}

fn find(page: &[u8], at: usize, text: &[u8]) -> Option<usize> {
    let rest = page.get(at..)?;
    let found = match text {
        [one] => rest.iter().position(|byte| byte == one),
        _ => rest.windows(text.len()).position(|window| window == text),
    };
    found.map(|found| at + found)
}

/// Where `</name` is, or the end.
fn end_of_raw(page: &[u8], mut at: usize, name: &str) -> usize {
    while let Some(close) = find(page, at, b"</") {
        let end = close + 2 + name.len();
        let same = |text: &[u8]| text.eq_ignore_ascii_case(name.as_bytes());
        if page.get(close + 2..end).is_some_and(same) {
            return close;
        }
        at = close + 2;
    }
    page.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn links() -> Links {
        Links {
            prefix: "/api/v1/namespaces/n/services/web/proxy".into(),
            backends: vec!["10.0.0.7:80".into(), "10.0.0.7".into()],
            host: "localhost:8001".into(),
        }
    }

    #[test]
    fn a_89_links_to_the_backend_go_through_the_proxy() {
        const PREFIX: &str = "/api/v1/namespaces/n/services/web/proxy";
        for (link, expected) in [
            ("/", Some("P/")),
            ("/a/b?c=/d#e", Some("P/a/b?c=/d#e")),
            ("http://10.0.0.7:80/a", Some("P/a")),
            ("//10.0.0.7/a", Some("P/a")),
            ("http://localhost:8001/a", Some("http://localhost:8001P/a")),
            ("P/a", None),
            ("http://10.0.0.7/P/a", Some("P/P/a")),
            ("http://10.0.0.7:80P/a", Some("P/a")),
            ("Px/a", Some("PPx/a")),
            ("a/b", None),
            ("./a", None),
            ("../a", None),
            ("#a", None),
            ("?a=/b//c", None),
            ("", None),
            ("mailto:a@example.com", None),
            ("javascript:x()//y", None),
            ("data:image/png;base64,//8=", None),
            ("http://example.com/a", None),
            ("//example.com/a", None),
            ("http://10.0.0.7:80", None),
        ] {
            let full = |text: &str| text.replace('P', PREFIX);
            assert_eq!(links().moved(&full(link)), expected.map(full), "{link}");
        }
    }

    #[test]
    fn a_89_only_the_links_of_a_page_are_changed() {
        for (page, expected) in [
            ("<a href=\"/x\">/x</a>", "<a href=\"P/x\">/x</a>"),
            ("<A class=k HREF = '/x' >", "<A class=k HREF = 'P/x' >"),
            ("<img src=/x.png alt=\"a > b\"/>", "<img src=P/x.png alt=\"a > b\"/>"),
            ("<a href=/x>", "<a href=P/x>"),
            ("<a href='/a'><a href='/b'>", "<a href='P/a'><a href='P/b'>"),
            ("<video poster=\"/p\" src=\"/v\">", "<video poster=\"P/p\" src=\"P/v\">"),
            ("<form action=\"/x?a=1&amp;b=2\">", "<form action=\"P/x?a=1&amp;b=2\">"),
            ("<a title=\"/x\" data-href=\"/x\">", "<a title=\"/x\" data-href=\"/x\">"),
            ("<div href=\"/x\">", "<div href=\"/x\">"),
            ("<!-- <a href=\"/x\"> -->", "<!-- <a href=\"/x\"> -->"),
            (
                "<script src=\"/s\">x = '<a href=\"/x\">'</script><a href=\"/y\">",
                "<script src=\"P/s\">x = '<a href=\"/x\">'</script><a href=\"P/y\">",
            ),
            (
                "<title><a href='/x'></TITLE><a href='/y'>",
                "<title><a href='/x'></TITLE><a href='P/y'>",
            ),
            ("1 < 2 <a href='/x'>", "1 < 2 <a href='P/x'>"),
            ("<a href=\"/x", "<a href=\"/x"),
            ("<a href=", "<a href="),
            ("<a href", "<a href"),
            ("</a href='/x'>", "</a href='/x'>"),
            ("caf\u{e9} <a href=\"/\u{e9}\">", "caf\u{e9} <a href=\"P/\u{e9}\">"),
        ] {
            let moved = links().page(page.as_bytes());
            let prefix = links().prefix;
            let expected = expected.replace("P/", &format!("{prefix}/"));
            assert_eq!(String::from_utf8(moved).unwrap(), expected, "{page}");
        }
    }

    #[test]
    fn a_request_path_cannot_inject_markup_into_a_page() {
        let links = Links { prefix: "/p\"><script>&'".into(), ..links() };
        let moved = links.page(b"<a href=\"/x\">");
        assert_eq!(
            String::from_utf8(moved).unwrap(),
            "<a href=\"/p&#34;&gt;&lt;script&gt;&amp;&#39;/x\">"
        );
    }

    proptest! {
        #[test]
        fn a_page_without_links_to_the_backend_is_not_changed(
            page in "(<|>|/|a|A|script|<!--|-->|href|=|\"|'| |#x|\n|é){0,60}"
        ) {
            let page = page.replace("=/", "=").replace("\"/", "\"").replace("'/", "'").replace("= /", "=");
            let moved = links().page(page.as_bytes());
            if !page.contains('/') {
                prop_assert_eq!(&moved, page.as_bytes());
            }
            prop_assert!(moved.len() >= page.len());
        }
    }
}
