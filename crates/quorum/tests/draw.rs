//! Pictures: well formed, complete, and the same each time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::collections::BTreeSet;

use conclave_quorum::build::{Built, build};
use conclave_quorum::draw::{
    ANTIPODAL_MAX, CurveOptions, CurvePoint, DrawError, DrawOptions, NODES_MAX, Scale, Series,
    curves, draw, heat_map,
};
use conclave_quorum::{NodeSet, text};

fn built(text: &str) -> Built {
    let spec = text::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let read = |_: &str| {
        let file = "1 2\n2 3\n1 3\n";
        Ok(file.to_owned())
    };
    build(&spec, None, &read).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// One start or empty tag.
#[derive(Debug)]
struct Tag {
    name: String,
    attributes: Vec<(String, String)>,
}

impl Tag {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    fn has_class(&self, class: &str) -> bool {
        let classes = self.get("class").unwrap_or_default();
        classes.split(' ').any(|other| other == class)
    }

    fn node(&self) -> usize {
        self.get("data-node").unwrap().parse().unwrap()
    }

    fn points(&self) -> Vec<(f64, f64)> {
        let pairs = self.get("points").unwrap().split(' ');
        pairs
            .map(|pair| {
                let (x, y) = pair.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            })
            .collect()
    }
}

/// Reads a document of elements, attributes and text; says what is wrong with any other.
fn parse(svg: &str) -> Result<(Vec<Tag>, Vec<String>), String> {
    let (mut tags, mut texts, mut open) = (Vec::new(), Vec::new(), Vec::<String>::new());
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        let (text, after) = rest.split_at(at);
        check_text(text)?;
        if !text.trim().is_empty() {
            texts.push(text.to_owned());
        }
        let end = after.find('>').ok_or("a tag without an end")?;
        let (inside, after) = (&after[1..end], &after[end + 1..]);
        rest = after;
        if let Some(name) = inside.strip_prefix('/') {
            let opened = open.pop().ok_or("an end too many")?;
            if opened != name {
                return Err(format!("<{opened}> ends as </{name}>"));
            }
            continue;
        }
        let empty = inside.ends_with('/');
        let tag = parse_tag(inside.trim_end_matches('/'))?;
        if !empty {
            open.push(tag.name.clone());
        } else if open.is_empty() {
            return Err("more than one root".to_owned());
        }
        tags.push(tag);
    }
    if !rest.trim().is_empty() || !open.is_empty() {
        return Err(format!("left at the end: {rest:?} {open:?}"));
    }
    Ok((tags, texts))
}

fn parse_tag(inside: &str) -> Result<Tag, String> {
    let (name, mut rest) = inside.split_once(' ').unwrap_or((inside, ""));
    let mut attributes: Vec<(String, String)> = Vec::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest.split_once("=\"").ok_or(format!("in <{inside}>"))?;
        let (value, after) = after.split_once('"').ok_or(format!("in <{inside}>"))?;
        check_text(value)?;
        let key = key.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if key.is_empty() || !key.chars().all(plain) || attributes.iter().any(|(k, _)| k == key) {
            return Err(format!("attribute {key:?} in <{inside}>"));
        }
        attributes.push((key.to_owned(), value.to_owned()));
        rest = after;
    }
    Ok(Tag {
        name: name.to_owned(),
        attributes,
    })
}

fn check_text(text: &str) -> Result<(), String> {
    for part in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
        if !known.iter().any(|entity| part.starts_with(entity)) {
            return Err(format!("a bare & before {part:?}"));
        }
    }
    let bad = |c: char| c == '<' || c == '>' || (c.is_control() && c != '\n');
    if text.contains(bad) {
        return Err(format!("a bad character in {text:?}"));
    }
    Ok(())
}

fn tags(svg: &str) -> Vec<Tag> {
    parse(svg).unwrap_or_else(|error| panic!("{error}")).0
}

/// The numbers of the nodes whose marks have this class.
fn marked(svg: &str, class: &str) -> BTreeSet<usize> {
    let tags = tags(svg);
    let marks = tags.iter().filter(|tag| tag.has_class(class));
    marks.map(Tag::node).collect()
}

fn width(svg: &str) -> f64 {
    tags(svg)[0].get("width").unwrap().parse().unwrap()
}

/// The small systems that cover every shape, besides the examples of all forms.
const SHAPES: &[&str] = &[
    "billiard(4)",
    "billiard(24)",
    "billiard(20)",
    "billiard(30, fit=trim)",
    "grid(23)",
    "rect(1,7)",
    "rect(7,1)",
    "mgrid(38, b=1)",
    "hgrid(2x2, 1x3, 2x1)",
    "tree(1)",
    "tree(2)",
    "tree(14)",
    "tree(100)",
    "walls(1,2,3,4)",
    "wheel(8)",
    "plane(7)",
    "plane(57)",
    "surficial(groups=1, n=4)",
    "surficial(groups=3, n=14)",
    "surficial(widths=3,3,2)",
    "multilevel(majority, 27, levels=2)",
    "multilevel(tree, 60, levels=0)",
    "hierarchical(1,3,1,3)",
    "majority(1)",
    "majority(101)",
];

fn all_texts() -> Vec<String> {
    let forms = text::forms().iter().map(|form| form.example.to_owned());
    let shapes = SHAPES.iter().map(|text| (*text).to_owned());
    forms.chain(shapes).collect()
}

/// A quorum of a system and some site of it.
fn some_quorum(built: &Built) -> (usize, NodeSet) {
    let family = built.system.family(None).unwrap();
    let quorum = family.cheapest(&vec![1.0; family.nodes()]).unwrap();
    let site = quorum.iter().next().unwrap();
    (site, quorum)
}

#[test]
fn the_checker_can_refuse() {
    for bad in [
        "<a><b></a></b>",
        "<a>",
        "<a/>",
        "<a></a></a>",
        "<a>x & y</a>",
        "<a x=1></a>",
        "<a x=\"1\" x=\"2\"></a>",
        "<a x=\"<\"></a>",
        "<a>\u{1b}</a>",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    assert!(parse("<a x=\"1\"><b/>t &amp; u</a>").is_ok());
}

#[test]
fn every_form_is_drawn_with_its_quorum() {
    for text in all_texts() {
        let built = built(&text);
        let nodes = built.system.nodes();
        let (site, quorum) = some_quorum(&built);
        let last = nodes - 1;
        let options = DrawOptions {
            quorum: Some(quorum.clone()),
            site: Some(site),
            second: Some(NodeSet::of(nodes, [last])),
            dead: NodeSet::of(nodes, [0, last]),
            antipodal: 3,
            ..DrawOptions::default()
        };
        let svg = draw(&built, &options).unwrap_or_else(|error| panic!("{text}: {error}"));
        let all = marked(&svg, "node");
        assert_eq!(all, (1..=nodes).collect(), "{text}");
        assert_eq!(marked(&svg, "quorum"), quorum.numbers().collect(), "{text}");
        assert_eq!(marked(&svg, "second"), [nodes].into(), "{text}");
        assert_eq!(marked(&svg, "dead"), [1, nodes].into(), "{text}");
        assert_eq!(marked(&svg, "owner"), [site + 1].into(), "{text}");
        assert!(width(&svg) <= 1400.0, "{text}");
        assert_eq!(draw(&built, &options).unwrap(), svg, "{text}");
    }
}

#[test]
fn a_site_is_drawn_with_its_own_quorum() {
    for text in all_texts() {
        let built = built(&text);
        let family = built.system.family(None).unwrap();
        let (site, _) = some_quorum(&built);
        let options = DrawOptions {
            site: Some(site),
            ..DrawOptions::default()
        };
        let svg = draw(&built, &options).unwrap_or_else(|error| panic!("{text}: {error}"));
        let numbers = marked(&svg, "quorum");
        assert!(numbers.contains(&(site + 1)), "{text}");
        if let Some(own) = family.own(site) {
            assert_eq!(numbers, own.numbers().collect(), "{text}");
        }
        let shown = NodeSet::of_numbers(family.nodes(), numbers);
        assert!(family.contains_quorum(&shown), "{text}");
    }
}

#[test]
fn heat_maps_colour_every_node() {
    for text in all_texts() {
        let built = built(&text);
        let nodes = built.system.nodes();
        let loads: Vec<f64> = (0..nodes).map(|node| node as f64 / nodes as f64).collect();
        let svg = heat_map(&built, &loads, Some("Loads".to_owned())).unwrap();
        let tags = tags(&svg);
        let fill = |number: usize| {
            let mark = tags
                .iter()
                .find(|tag| tag.has_class("node") && tag.node() == number);
            mark.unwrap().get("fill").unwrap().to_owned()
        };
        assert_eq!(fill(1), "#ffffe5", "{text}");
        if nodes > 1 {
            assert_eq!(fill(nodes), "#081d58", "{text}");
        }
        assert!(svg.contains(">Loads</text>"), "{text}");
        assert!(width(&svg) <= 1400.0, "{text}");
    }
}

/// Figure 5(a) of the billiard paper: the path of site 11 among 40.
#[test]
fn the_path_of_site_11_is_that_of_the_paper() {
    let built = built("billiard(40)");
    let options = DrawOptions {
        site: Some(10),
        ..DrawOptions::default()
    };
    let tags = tags(&draw(&built, &options).unwrap());
    let path = tags.iter().find(|tag| tag.has_class("path")).unwrap();
    let points = path.points();
    // The first and the last point are the corners where the path enters and leaves.
    let inner = &points[1..points.len() - 1];
    let sites: Vec<usize> = inner
        .iter()
        .map(|(x, y)| {
            let number = |tag: &&Tag, name: &str| tag.get(name).unwrap().parse::<f64>().unwrap();
            let around = |tag: &&Tag| {
                let dx = number(tag, "x") + number(tag, "width") / 2.0 - x;
                let dy = number(tag, "y") + number(tag, "height") / 2.0 - y;
                tag.has_class("node") && dx.abs() < 1.0 && dy.abs() < 1.0
            };
            let cells = tags
                .iter()
                .filter(|tag| tag.name == "rect" && tag.has_class("node"));
            cells.filter(around).map(Tag::node).next().unwrap()
        })
        .collect();
    assert_eq!(sites, [23, 19, 15, 11, 16, 21, 26, 22, 18]);
    let up = |a: usize, b: usize| inner[b].1 < inner[a].1;
    assert!(up(0, 3) && !up(3, 6) && up(6, 8));
    assert!(inner.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn antipodal_paths_are_bounded() {
    let built = built("billiard(40)");
    let count = |antipodal: usize| {
        let options = DrawOptions {
            antipodal,
            ..DrawOptions::default()
        };
        let tags = tags(&draw(&built, &options).unwrap());
        tags.iter().filter(|tag| tag.has_class("antipodal")).count()
    };
    assert_eq!(count(0), 0);
    assert_eq!(count(7), 7);
    assert_eq!(count(usize::MAX), ANTIPODAL_MAX);
}

#[test]
fn folded_boards_show_shared_cells() {
    let built = built("billiard(20)");
    let svg = draw(&built, &DrawOptions::default()).unwrap();
    // A board of side 7 has 24 cells; four of them share.
    assert_eq!(marked(&svg, "shared").len(), 4);
    assert!(svg.contains("shares the site further in"));
}

#[test]
fn hostile_names_are_escaped() {
    let mut built = built("expr(choose(2, a, b, c))");
    let names = ["<script>", "x\"&'y", "\u{1b}]0;\u{0}"];
    built.names = Some(names.map(str::to_owned).to_vec());
    built.text = "<&\"' ]]> title".to_owned();
    let options = DrawOptions {
        quorum: Some(NodeSet::full(3)),
        site: Some(0),
        ..DrawOptions::default()
    };
    let svg = draw(&built, &options).unwrap();
    let (_, texts) = parse(&svg).unwrap();
    assert!(texts.iter().any(|text| text == "&lt;script&gt;"));
    assert!(texts.iter().any(|text| text == "x&quot;&amp;&#39;y"));
    assert!(
        texts
            .iter()
            .any(|text| text.starts_with("&lt;&amp;&quot;&#39; ]]&gt; title"))
    );
    // Fewer names than nodes, as no text gives them: numbers fill in.
    built.names = Some(vec!["only".to_owned()]);
    let svg = draw(&built, &DrawOptions::default()).unwrap();
    let (_, texts) = parse(&svg).unwrap();
    for label in ["only", "2", "3"] {
        assert!(texts.iter().any(|text| text == label), "{label}");
    }
}

#[test]
fn numbers_start_at_one_and_can_be_left_out() {
    let built = built("majority(5)");
    let labels = |labels: bool| {
        let options = DrawOptions {
            labels,
            ..DrawOptions::default()
        };
        let svg = draw(&built, &options).unwrap();
        let lines = svg.lines().filter(|line| line.starts_with("<text"));
        let found = lines.filter_map(|line| {
            let inner = line.split_once('>')?.1.split_once('<')?.0;
            inner.parse::<usize>().ok()
        });
        found.collect::<Vec<_>>()
    };
    assert_eq!(labels(true), [1, 2, 3, 4, 5]);
    assert!(labels(false).is_empty());
}

#[test]
fn the_largest_pictures_fit() {
    for text in [
        "rect(5,400)",
        "rect(400,5)",
        "walls(400,400,1)",
        "hgrid(1x200, 1x2)",
        "hgrid(2x2, 2x2, 2x2, 2x2, 2x2)",
        "tree(2000)",
        "hierarchical(2,2,2,2,2,2,2,2,2,2)",
        "plane(307)",
        "majority(2000)",
        "surficial(groups=10, n=2000)",
        "surficial(widths=150,1)",
        "billiard(2000)",
        "multilevel(majority, 2000, levels=1)",
        "multilevel(majority, 300, levels=10)",
        "mgrid(1936, b=3)",
    ] {
        let built = built(text);
        let nodes = built.system.nodes();
        let heat = vec![0.5; nodes];
        for heat in [None, Some(heat)] {
            let options = DrawOptions {
                heat,
                ..DrawOptions::default()
            };
            let svg = draw(&built, &options).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(width(&svg) <= 1400.0, "{text}");
            for tag in tags(&svg).iter().filter(|tag| tag.has_class("node")) {
                let number = |name: &str| tag.get(name).unwrap().parse::<f64>().unwrap();
                assert!(
                    number("x") >= 0.0 && number("width") > 0.0,
                    "{text} {tag:?}"
                );
                assert!(number("x") + number("width") <= 1370.0, "{text} {tag:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_in_one_sentence() {
    for (text, what, count, limit) in [
        ("majority(2001)", "nodes", 2001, NODES_MAX),
        ("billiard(2112)", "nodes", 2112, NODES_MAX),
        ("rect(2,500)", "columns", 500, 400),
        ("rect(500,2)", "rows", 500, 400),
        ("wheel(1000)", "bricks in a row", 999, 400),
        ("plane(553)", "points of a plane", 553, 400),
        ("surficial(widths=500,2)", "quorums of all groups", 502, 300),
        ("hierarchical(1500)", "leaves of a tree", 1500, 1024),
    ] {
        let error = draw(&built(text), &DrawOptions::default()).unwrap_err();
        assert_eq!(error, DrawError::TooMany { what, count, limit }, "{text}");
        let sentence = error.to_string();
        assert!(sentence.contains(&limit.to_string()), "{sentence}");
        assert!(sentence.contains("draw a smaller system"), "{sentence}");
    }
}

#[test]
fn wrong_options_are_refused() {
    let built = built("majority(5)");
    let default = DrawOptions::default;
    let refused = |options: DrawOptions| draw(&built, &options).unwrap_err();
    let six = Some(NodeSet::of(6, [0]));
    for options in [
        DrawOptions {
            quorum: six.clone(),
            ..default()
        },
        DrawOptions {
            second: six.clone(),
            ..default()
        },
        DrawOptions {
            dead: NodeSet::of(6, [0]),
            ..default()
        },
        DrawOptions {
            heat: Some(vec![0.0; 6]),
            ..default()
        },
    ] {
        let error = refused(options);
        let DrawError::Capacity {
            given: 6, nodes: 5, ..
        } = error
        else {
            panic!("{error:?}");
        };
    }
    let site = DrawOptions {
        site: Some(5),
        ..default()
    };
    assert_eq!(refused(site), DrawError::NoSite { site: 6, nodes: 5 });
    let both = DrawOptions {
        site: Some(5),
        quorum: Some(NodeSet::of(5, [0])),
        ..default()
    };
    assert_eq!(refused(both), DrawError::NoSite { site: 6, nodes: 5 });
    let group = DrawOptions {
        group: Some(0),
        ..default()
    };
    assert_eq!(
        refused(group),
        DrawError::NoGroup {
            group: 1,
            groups: 0
        }
    );
    for bad in [f64::NAN, f64::INFINITY, -0.5] {
        let heat = Some(vec![0.1, bad, 0.1, 0.1, 0.1]);
        let error = refused(DrawOptions { heat, ..default() });
        assert!(
            matches!(error, DrawError::Load { node: 2, .. }),
            "{error:?}"
        );
    }
    let spare = self::built("billiard(30, fit=trim)");
    let options = DrawOptions {
        site: Some(29),
        ..default()
    };
    assert_eq!(draw(&spare, &options), Err(DrawError::NoOwn { site: 30 }));
}

#[test]
fn a_group_shows_its_lines() {
    let built = built("surficial(widths=3,3,2)");
    let thick = |options: &DrawOptions| {
        let tags = tags(&draw(&built, options).unwrap());
        let lines: Vec<&Tag> = tags.iter().filter(|tag| tag.has_class("line")).collect();
        assert_eq!(lines.len(), 8);
        let width = |tag: &&&Tag| tag.get("stroke-width").unwrap().parse::<f64>().unwrap() > 3.0;
        lines.iter().filter(width).count()
    };
    let group = DrawOptions {
        group: Some(1),
        ..DrawOptions::default()
    };
    assert_eq!(thick(&group), 3);
    let site = DrawOptions {
        site: Some(0),
        ..group.clone()
    };
    assert_eq!(thick(&site), 1);
    assert_eq!(thick(&DrawOptions::default()), 0);
    let none = DrawOptions {
        group: Some(3),
        ..DrawOptions::default()
    };
    assert_eq!(
        draw(&built, &none),
        Err(DrawError::NoGroup {
            group: 4,
            groups: 3
        })
    );
}

fn series(name: &str, values: &[(f64, f64)], exact: bool) -> Series {
    let points = values.iter().map(|(p, value)| CurvePoint {
        p: *p,
        low: value / 2.0,
        value: *value,
        high: value * 2.0,
    });
    Series {
        name: name.to_owned(),
        points: points.collect(),
        exact,
    }
}

#[test]
fn curves_clip_what_lies_below_the_axis() {
    let all = [
        series("exact <1>", &[(0.0, 0.0), (0.1, 0.001), (0.5, 0.5)], true),
        series("far", &[(0.0, 0.0), (0.1, 1e-40), (0.5, 0.5)], true),
        series("simulated", &[(0.1, 0.0), (0.2, 0.04), (0.5, 0.4)], false),
    ];
    let svg = curves(&all, &CurveOptions::default());
    let tags = tags(&svg);
    let count = |class: &str| tags.iter().filter(|tag| tag.has_class(class)).count();
    assert_eq!(count("curve"), 3);
    assert_eq!(count("band"), 1);
    assert_eq!(count("clipped"), 4);
    assert_eq!(count("alone"), 1);
    let curves_drawn: Vec<&Tag> = tags.iter().filter(|tag| tag.has_class("curve")).collect();
    let lowest = 464.0;
    assert_eq!(curves_drawn[0].points()[0], (76.0, lowest));
    assert_eq!(curves_drawn[1].points()[1].1, lowest);
    // The simulated point without a failure is no part of the line.
    assert_eq!(curves_drawn[2].points().len(), 2);
    let dash = |tag: &Tag| tag.get("stroke-dasharray").is_some();
    assert!(!dash(curves_drawn[0]) && dash(curves_drawn[2]));
    for text in [
        "exact &lt;1&gt;",
        "one node alone",
        "below 1e-15 (maybe 0)",
        "1e-15",
    ] {
        assert!(svg.contains(&format!(">{text}</text>")), "{text}");
    }
    let inside = |(x, y): (f64, f64)| (76.0..=936.0).contains(&x) && (4.0..=464.0).contains(&y);
    assert!(
        curves_drawn
            .iter()
            .all(|tag| tag.points().into_iter().all(inside))
    );
}

#[test]
fn curves_of_availability_are_even() {
    let all = [series("a", &[(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)], true)];
    let options = CurveOptions {
        title: Some("T".to_owned()),
        scale: Scale::Availability,
        log_p: false,
    };
    let svg = curves(&all, &options);
    let tags = tags(&svg);
    let curve = tags.iter().find(|tag| tag.has_class("curve")).unwrap();
    assert_eq!(
        curve.points(),
        [(76.0, 4.0), (506.0, 234.0), (936.0, 464.0)]
    );
    assert!(tags.iter().all(|tag| !tag.has_class("clipped")));
    assert!(svg.contains(">T</text>"));
}

#[test]
fn curves_survive_odd_input() {
    let bad = [f64::NAN, f64::INFINITY, -1.0, 2.0, 0.0, 1.0, 1e-300];
    let points: Vec<(f64, f64)> = bad
        .iter()
        .flat_map(|p| bad.iter().map(move |value| (*p, *value)))
        .collect();
    for scale in [Scale::LogFailure, Scale::Availability] {
        for log_p in [false, true] {
            let options = CurveOptions {
                title: None,
                scale,
                log_p,
            };
            for points in [&points[..], &[(0.3, 0.2)], &[(0.0, 0.0)], &[]] {
                let all = [series("odd", points, true), series("odd", points, false)];
                let svg = curves(&all, &options);
                tags(&svg);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{options:?}");
            }
            tags(&curves(&[], &options));
        }
    }
}
