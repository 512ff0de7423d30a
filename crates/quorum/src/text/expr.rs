//! Expressions over node names: `a*b + choose(2, c, d, e)`.
//!
//! `*` is "and", `+` is "or" and binds less; `choose(k, …)` is "at least k of", `maj(…)` is "more
//! than half of".

use std::collections::BTreeMap;

use super::lexer::{Cursor, Fault, Token, number};
use super::{DEPTH_MAX, NAMED_MAX, is_name_char, node_number};

/// When a set of nodes contains a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// The node, counted from 0, is in the set.
    Node(usize),
    /// All of them hold; two at least.
    All(Vec<Expr>),
    /// One of them holds; two at least.
    Any(Vec<Expr>),
    /// At least so many of them hold: from 1 to their number.
    Choose(u64, Vec<Expr>),
}

impl Expr {
    /// The canonical text, with the given node names.
    pub(super) fn text(&self, names: &[String]) -> String {
        let join = |parts: &[Self], sign: &str, wrap: fn(&Self) -> bool| {
            let parts: Vec<String> = parts
                .iter()
                .map(|part| match part.text(names) {
                    text if wrap(part) => format!("({text})"),
                    text => text,
                })
                .collect();
            parts.join(sign)
        };
        match self {
            Self::Node(node) => match names.get(*node) {
                Some(name) => name.clone(),
                None => (node + 1).to_string(),
            },
            Self::All(parts) => join(parts, "*", |part| {
                matches!(part, Self::All(_) | Self::Any(_))
            }),
            Self::Any(parts) => join(parts, " + ", |part| matches!(part, Self::Any(_))),
            Self::Choose(k, parts) => format!("choose({k}, {})", join(parts, ", ", |_| false)),
        }
    }
}

/// Reads an expression that ends before a closing parenthesis, at the given depth of nesting.
pub(super) fn parse_expr(
    cursor: &mut Cursor<'_>,
    depth: usize,
) -> Result<(Expr, Vec<String>), Fault> {
    let mut parser = Parser {
        names: Names::default(),
    };
    let mut expr = parser.any(cursor, depth)?;
    let names = parser.names.finish(&mut expr)?;
    Ok((expr, names))
}

struct Parser<'a> {
    names: Names<'a>,
}

impl<'a> Parser<'a> {
    fn any(&mut self, cursor: &mut Cursor<'a>, depth: usize) -> Result<Expr, Fault> {
        let first = self.all(cursor, depth)?;
        let mut parts = vec![first];
        while cursor.eat('+') {
            parts.push(self.all(cursor, depth)?);
        }
        Ok(single_or(parts, Expr::Any))
    }

    fn all(&mut self, cursor: &mut Cursor<'a>, depth: usize) -> Result<Expr, Fault> {
        let first = self.factor(cursor, depth)?;
        let mut parts = vec![first];
        while cursor.eat('*') {
            parts.push(self.factor(cursor, depth)?);
        }
        Ok(single_or(parts, Expr::All))
    }

    fn factor(&mut self, cursor: &mut Cursor<'a>, depth: usize) -> Result<Expr, Fault> {
        let token = cursor.next();
        if token.is('(') {
            check_depth(token.at, depth + 1)?;
            let inside = self.any(cursor, depth + 1)?;
            let close = cursor.next();
            if close.is(')') {
                return Ok(inside);
            }
            return Err(if close.text.is_empty() {
                cursor.unclosed(token.at)
            } else {
                Fault::new(close.at, format!("unexpected {close} in an expression"))
                    .hint("expected '*', '+' or ')'")
            });
        }
        if !token.is_word() {
            return Err(
                Fault::new(token.at, format!("expected a node name, found {token}"))
                    .hint("allowed: names, '*', '+', parentheses, choose(k, …) and maj(…)"),
            );
        }
        if cursor.peek().is('(') {
            return self.call(cursor, token, depth + 1);
        }
        self.names.place(token).map(Expr::Node)
    }

    /// `choose(k, …)` or `maj(…)`, after its name.
    fn call(
        &mut self,
        cursor: &mut Cursor<'a>,
        name: Token<'a>,
        depth: usize,
    ) -> Result<Expr, Fault> {
        check_depth(name.at, depth)?;
        if name.text != "choose" && name.text != "maj" {
            return Err(Fault::new(name.at, format!("{name} takes no arguments"))
                .hint("in an expression only choose(k, …) and maj(…) do"));
        }
        let open = cursor.next().at;
        let mut needed = None;
        if name.text == "choose" {
            let token = cursor.next();
            needed = Some((number(token, "k of choose(k, …)")?, token.at));
            let comma = cursor.peek();
            if !cursor.comma_or_close(open)? {
                return Err(Fault::new(comma.at, "choose needs expressions after k")
                    .hint("write choose(2, a, b, c)"));
            }
        }
        let first = self.any(cursor, depth)?;
        let mut parts = vec![first];
        while cursor.comma_or_close(open)? {
            parts.push(self.any(cursor, depth)?);
        }
        let most = parts.len() as u64;
        let k = match needed {
            None => most / 2 + 1,
            Some((k, _)) if (1..=most).contains(&k) => k,
            Some((_, at)) => {
                return Err(Fault::new(at, format!("k must be from 1 to {most}"))
                    .hint("so many expressions follow"));
            }
        };
        Ok(Expr::Choose(k, parts))
    }
}

fn single_or(mut parts: Vec<Expr>, many: fn(Vec<Expr>) -> Expr) -> Expr {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            many(parts)
        }
    }
}

/// Refuses a nesting deeper than the bound, at the given place.
pub(super) fn check_depth(at: usize, depth: usize) -> Result<(), Fault> {
    if depth > DEPTH_MAX {
        return Err(Fault::new(at, "nested too deeply")
            .hint(format!("at most {DEPTH_MAX} levels are allowed")));
    }
    Ok(())
}

/// Node names in order of first appearance, with their places.
#[derive(Default)]
struct Names<'a> {
    places: BTreeMap<&'a str, usize>,
    order: Vec<Token<'a>>,
}

impl<'a> Names<'a> {
    fn place(&mut self, token: Token<'a>) -> Result<usize, Fault> {
        if let Some((offset, wrong)) = token.text.char_indices().find(|(_, c)| !is_name_char(*c)) {
            return Err(
                Fault::new(token.at + offset, format!("a node name has no '{wrong}'"))
                    .hint("allowed: letters, digits, '_', '-', '.'"),
            );
        }
        let fresh = self.order.len();
        let place = *self.places.entry(token.text).or_insert(fresh);
        if place == fresh {
            self.order.push(token);
        }
        Ok(place)
    }

    /// The names by node. Where all are positive numbers, each is its own node.
    fn finish(self, expr: &mut Expr) -> Result<Vec<String>, Fault> {
        let numbers: Option<Vec<usize>> = self
            .order
            .iter()
            .map(|token| node_number(token.text))
            .collect();
        let Some(numbers) = numbers else {
            return Ok(self.order.iter().map(|name| name.text.into()).collect());
        };
        for (token, node) in self.order.iter().zip(&numbers) {
            if *node > NAMED_MAX {
                return Err(Fault::new(token.at, "node number too large")
                    .hint(format!("at most {NAMED_MAX} is allowed")));
            }
        }
        renumber(expr, &numbers);
        let nodes = numbers.iter().copied().max().unwrap_or(0);
        Ok((1..=nodes).map(|node| node.to_string()).collect())
    }
}

/// Turns places in order of appearance into the nodes of these numbers (from 1).
fn renumber(expr: &mut Expr, numbers: &[usize]) {
    match expr {
        Expr::Node(node) => *node = numbers[*node] - 1,
        Expr::All(parts) | Expr::Any(parts) | Expr::Choose(_, parts) => {
            for part in parts {
                renumber(part, numbers);
            }
        }
    }
}
