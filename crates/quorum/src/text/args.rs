//! The arguments of a form: read by shape and by name, then asked for by the form's builder.

use super::forms::{self, FormInfo};
use super::lexer::{Cursor, Fault, Token, number};
use super::{NODES_MAX, Spec, Tier, nearest};

/// How many brackets may stand in each other: the most levels of a hierarchy below its root.
const NESTED_MAX: usize = 20;

/// One argument that a form takes.
#[derive(Debug)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// Whether it may stand without its name.
    pub(super) plain: bool,
}

/// What an argument looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `12`
    Number,
    /// `3,3,2`
    Numbers,
    /// `3x3, 2x4`
    Sizes,
    /// `T0,T1,T3p`
    Tiers,
    /// A word such as `fold`.
    Word,
    /// A form of its own.
    System,
    /// A form of its own, or several in brackets.
    Systems,
    /// Numbers in brackets in brackets: `[[3,3],[4,2]]`.
    Nested,
}

impl Shape {
    /// Whether a value of this shape begins with a form's name.
    fn is_form(self) -> bool {
        matches!(self, Self::System | Self::Systems)
    }
}

impl Param {
    pub(super) const fn plain(name: &'static str, shape: Shape) -> Self {
        Self {
            name,
            shape,
            plain: true,
        }
    }

    pub(super) const fn named(name: &'static str, shape: Shape) -> Self {
        Self {
            name,
            shape,
            plain: false,
        }
    }
}

/// The arguments found, each with the byte offset of its value.
pub(super) struct Args<'a> {
    form: &'static FormInfo,
    values: Vec<Option<Value<'a>>>,
    end: usize,
}

enum Value<'a> {
    Number(Placed<u64>),
    Numbers(Vec<Placed<u64>>),
    Sizes(Vec<Placed<(u64, u64)>>),
    Tiers(Vec<Tier>),
    Word(Token<'a>),
    System(Placed<Spec>),
    Systems(Vec<Placed<Spec>>),
    Nested(Placed<Vec<Vec<usize>>>),
}

/// A value and the byte offset where it stands.
#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) at: usize,
}

impl<'a> Args<'a> {
    /// Reads the arguments of `form`, after its name, which may be none at all.
    pub(super) fn read(
        form: &'static FormInfo,
        params: &'static [Param],
        cursor: &mut Cursor<'a>,
        depth: usize,
    ) -> Result<Self, Fault> {
        let mut args = Self {
            form,
            values: params.iter().map(|_| None).collect(),
            end: cursor.at(),
        };
        if !cursor.peek().is('(') {
            return Ok(args);
        }
        let open = cursor.next().at;
        if cursor.peek().is(')') {
            args.end = cursor.next().at;
            return Ok(args);
        }
        loop {
            args.read_one(params, cursor, depth)?;
            args.end = cursor.peek().at;
            if !cursor.comma_or_close(open)? {
                return Ok(args);
            }
        }
    }

    fn read_one(
        &mut self,
        params: &'static [Param],
        cursor: &mut Cursor<'a>,
        depth: usize,
    ) -> Result<(), Fault> {
        let token = cursor.peek();
        let index = if token.is_word() && cursor.peek_second().is('=') {
            cursor.next();
            cursor.next();
            self.named(params, token)?
        } else {
            self.unnamed(params, token)?
        };
        self.values[index] = Some(read_value(&params[index], cursor, depth)?);
        Ok(())
    }

    /// The parameter of this name.
    fn named(&self, params: &[Param], name: Token<'_>) -> Result<usize, Fault> {
        let form = self.form.name;
        let Some(index) = params.iter().position(|param| param.name == name.text) else {
            let names: Vec<_> = params.iter().map(|param| param.name).collect();
            return Err(Fault::new(name.at, format!("{form} has no option {name}"))
                .hint(format!("allowed: {}", names.join(", "))));
        };
        if self.values[index].is_some() {
            return Err(Fault::new(name.at, format!("{name} is given twice")));
        }
        Ok(index)
    }

    /// The parameter that a value without a name belongs to: the first free one of its shape.
    fn unnamed(&self, params: &[Param], token: Token<'_>) -> Result<usize, Fault> {
        let free = || {
            params
                .iter()
                .enumerate()
                .filter(|(index, param)| param.plain && self.values[*index].is_none())
        };
        let fits = |param: &Param| match param.shape {
            Shape::Systems if token.is('[') => true,
            shape => shape.is_form() != token.is_numeric() && token.is_word(),
        };
        if (token.is_word() || token.is('['))
            && let Some((index, _)) = free().find(|(_, param)| fits(param))
        {
            return Ok(index);
        }
        let form = self.form;
        let fault = match free().next() {
            Some((_, param)) => {
                let wanted = match param.shape {
                    Shape::System | Shape::Systems => "a form",
                    Shape::Sizes => "a size such as 3x3",
                    _ => "a number",
                };
                let name = param.name;
                Fault::new(
                    token.at,
                    format!("expected {wanted} for {name}, found {token}"),
                )
            }
            None if token.is_word() => Fault::new(
                token.at,
                format!("too many arguments without a name: {token}"),
            ),
            None => Fault::new(token.at, format!("expected an argument, found {token}")),
        };
        Err(fault.hint(format!("the form is {}", form.syntax)))
    }

    /// The byte offset where the arguments end, for what is missing.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    fn take(&mut self, name: &str) -> Option<Value<'a>> {
        let params = self.form.params();
        let index = params.iter().position(|param| param.name == name)?;
        self.values[index].take()
    }

    /// A number of any size.
    pub(super) fn number(&mut self, name: &str) -> Option<Placed<u64>> {
        match self.take(name)? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// A number of something, from `least` to [`NODES_MAX`].
    pub(super) fn count(
        &mut self,
        name: &str,
        least: usize,
    ) -> Result<Option<Placed<usize>>, Fault> {
        let number = self.number(name);
        number.map(|number| count(&number, name, least)).transpose()
    }

    /// The number of nodes, where it is given.
    pub(super) fn n(&mut self) -> Result<Option<usize>, Fault> {
        Ok(self.count("n", 1)?.map(|n| n.value))
    }

    /// A number of something that must be given.
    pub(super) fn needed(&mut self, name: &str, least: usize) -> Result<Placed<usize>, Fault> {
        let found = self.count(name, least)?;
        found.ok_or_else(|| self.missing(name))
    }

    /// A list of numbers of any size, at least one.
    pub(super) fn numbers(&mut self, name: &str) -> Option<Vec<Placed<u64>>> {
        match self.take(name)? {
            Value::Numbers(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// A list of positive numbers, at least one.
    pub(super) fn counts(&mut self, name: &str) -> Result<Option<Vec<usize>>, Fault> {
        let Some(numbers) = self.numbers(name) else {
            return Ok(None);
        };
        numbers
            .iter()
            .map(|number| Ok(count(number, name, 1)?.value))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// A list of sizes, at least one.
    pub(super) fn sizes(&mut self, name: &str) -> Result<Vec<(usize, usize)>, Fault> {
        let Some(Value::Sizes(sizes)) = self.take(name) else {
            return Err(self.missing(name));
        };
        sizes
            .iter()
            .map(|Placed { value, at }| {
                let rows = Placed {
                    value: value.0,
                    at: *at,
                };
                let cols = Placed {
                    value: value.1,
                    at: *at,
                };
                Ok((
                    count(&rows, "rows", 1)?.value,
                    count(&cols, "columns", 1)?.value,
                ))
            })
            .collect()
    }

    pub(super) fn tiers(&mut self, name: &str) -> Option<Vec<Tier>> {
        match self.take(name)? {
            Value::Tiers(tiers) => Some(tiers),
            _ => None,
        }
    }

    /// One of a few words, by the word that each shows.
    pub(super) fn word<T: Copy>(
        &mut self,
        name: &str,
        all: &[T],
        word: fn(T) -> &'static str,
    ) -> Result<Option<T>, Fault> {
        let Some(Value::Word(token)) = self.take(name) else {
            return Ok(None);
        };
        choice(token, name, all, word).map(Some)
    }

    /// A form of its own, where one is given.
    pub(super) fn system(&mut self, name: &str) -> Option<Placed<Spec>> {
        match self.take(name)? {
            Value::System(system) => Some(system),
            _ => None,
        }
    }

    /// Forms of their own, where some are given.
    pub(super) fn systems(&mut self, name: &str) -> Option<Vec<Placed<Spec>>> {
        match self.take(name)? {
            Value::Systems(systems) => Some(systems),
            _ => None,
        }
    }

    /// Sizes in brackets in brackets, by level.
    pub(super) fn nested(&mut self, name: &str) -> Option<Placed<Vec<Vec<usize>>>> {
        match self.take(name)? {
            Value::Nested(sizes) => Some(sizes),
            _ => None,
        }
    }

    /// A form of its own that must be given and must not be a group system.
    pub(super) fn one_family(&mut self, name: &str) -> Result<Box<Spec>, Fault> {
        let Some(system) = self.system(name) else {
            return Err(self.missing(name));
        };
        if system.value.is_groups() {
            let form = self.form.name;
            let inside = system.value.name();
            return Err(Fault::new(
                system.at,
                format!("{name} of {form} cannot be the group system {inside}"),
            )
            .hint("a form with one family of quorums is allowed, such as majority(5)"));
        }
        Ok(Box::new(system.value))
    }

    /// A required argument is not there.
    pub(super) fn missing(&self, name: &str) -> Fault {
        let FormInfo {
            name: form, syntax, ..
        } = self.form;
        Fault::new(self.end, format!("{form} needs {name}")).hint(format!("the form is {syntax}"))
    }
}

fn read_value<'a>(
    param: &Param,
    cursor: &mut Cursor<'a>,
    depth: usize,
) -> Result<Value<'a>, Fault> {
    Ok(match param.shape {
        Shape::Number => Value::Number(placed(cursor.next(), param.name)?),
        Shape::Numbers => Value::Numbers(read_list(cursor, Token::is_numeric, |token| {
            placed(token, param.name)
        })?),
        Shape::Sizes => Value::Sizes(read_list(cursor, Token::is_numeric, size)?),
        Shape::Tiers => {
            let found = read_list(cursor, is_tier_like, |token| {
                // A person may write the prime that papers use.
                let plain = Token {
                    text: if token.text == "T3'" {
                        "T3p"
                    } else {
                        token.text
                    },
                    ..token
                };
                let value = choice(plain, param.name, Tier::ALL, Tier::word)?;
                Ok(Placed {
                    value,
                    at: token.at,
                })
            })?;
            Value::Tiers(in_order(found)?)
        }
        Shape::Word => Value::Word(cursor.next()),
        Shape::System => {
            let at = cursor.peek().at;
            let value = forms::parse_form(cursor, depth + 1)?;
            Value::System(Placed { value, at })
        }
        Shape::Systems => Value::Systems(read_systems(cursor, depth)?),
        Shape::Nested => {
            let at = cursor.peek().at;
            let mut reader = Nested::default();
            reader.read(cursor, param.name, 0)?;
            let rows = reader.rows;
            Value::Nested(Placed { value: rows, at })
        }
    })
}

/// Reads a form, or several in brackets.
fn read_systems(cursor: &mut Cursor<'_>, depth: usize) -> Result<Vec<Placed<Spec>>, Fault> {
    let read = |cursor: &mut Cursor<'_>| {
        let at = cursor.peek().at;
        let value = forms::parse_form(cursor, depth + 1)?;
        Ok(Placed { value, at })
    };
    if !cursor.eat('[') {
        return Ok(vec![read(cursor)?]);
    }
    let mut systems = Vec::new();
    loop {
        systems.push(read(cursor)?);
        if !comma_or_bracket(cursor)? {
            return Ok(systems);
        }
    }
}

/// Reads numbers in brackets in brackets, all equally deep.
#[derive(Default)]
struct Nested {
    /// How many items each bracket of each depth has; the last row has the numbers themselves.
    rows: Vec<Vec<usize>>,
    /// How deep the brackets with numbers are, from 0.
    numbers: Option<usize>,
}

impl Nested {
    fn read(&mut self, cursor: &mut Cursor<'_>, name: &str, depth: usize) -> Result<(), Fault> {
        let open = cursor.next();
        if !open.is('[') {
            return Err(Fault::new(open.at, format!("expected '[', found {open}"))
                .hint(format!("write {name} as in {name}=[[3,3],[4,2]]")));
        }
        if depth >= NESTED_MAX {
            return Err(Fault::new(open.at, "too many brackets in each other")
                .hint(format!("at most {NESTED_MAX} are allowed")));
        }
        let mut items = 0;
        loop {
            let token = cursor.peek();
            let deeper = token.is('[');
            if self
                .numbers
                .is_some_and(|numbers| deeper == (numbers == depth))
            {
                return Err(
                    Fault::new(token.at, "the brackets are not equally deep").hint(
                        "every size stands in as many brackets as there are levels below the root",
                    ),
                );
            }
            if deeper {
                self.read(cursor, name, depth + 1)?;
            } else {
                let size = count(&placed(cursor.next(), name)?, name, 1)?;
                self.numbers = Some(depth);
                self.row(depth + 1).push(size.value);
            }
            items += 1;
            if !comma_or_bracket(cursor)? {
                break;
            }
        }
        self.row(depth).push(items);
        Ok(())
    }

    fn row(&mut self, depth: usize) -> &mut Vec<usize> {
        if self.rows.len() <= depth {
            self.rows.resize(depth + 1, Vec::new());
        }
        &mut self.rows[depth]
    }
}

/// Takes a comma (true) or the closing bracket (false).
fn comma_or_bracket(cursor: &mut Cursor<'_>) -> Result<bool, Fault> {
    let token = cursor.next();
    if token.is(',') {
        return Ok(true);
    }
    if token.is(']') {
        return Ok(false);
    }
    Err(Fault::new(token.at, format!("unexpected {token}")).hint("expected ',' or ']'"))
}

/// Reads one item, and more after commas as long as they look like items.
fn read_list<'a, T>(
    cursor: &mut Cursor<'a>,
    like: fn(&Token<'a>) -> bool,
    read: impl Fn(Token<'a>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut items = vec![read(cursor.next())?];
    while cursor.peek().is(',') && like(&cursor.peek_second()) {
        let mut ahead = cursor.clone();
        ahead.next();
        let item = ahead.next();
        if ahead.peek().is('=') {
            break;
        }
        *cursor = ahead;
        items.push(read(item)?);
    }
    Ok(items)
}

fn is_tier_like(token: &Token<'_>) -> bool {
    let tier = token.text.strip_prefix(['T', 't']);
    tier.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The tiers sorted; none may be given twice.
fn in_order(mut tiers: Vec<Placed<Tier>>) -> Result<Vec<Tier>, Fault> {
    tiers.sort_by_key(|tier| (tier.value, tier.at));
    let twice = tiers.windows(2).find(|pair| pair[0].value == pair[1].value);
    if let Some([_, second]) = twice {
        return Err(Fault::new(
            second.at,
            format!("tier {} is given twice", second.value),
        ));
    }
    Ok(tiers.iter().map(|tier| tier.value).collect())
}

fn placed(token: Token<'_>, name: &str) -> Result<Placed<u64>, Fault> {
    Ok(Placed {
        value: number(token, name)?,
        at: token.at,
    })
}

fn size(token: Token<'_>) -> Result<Placed<(u64, u64)>, Fault> {
    let Some((rows, cols)) = token.text.split_once('x') else {
        return Err(
            Fault::new(token.at, format!("expected a size, found {token}"))
                .hint("write rows and columns as in 3x4"),
        );
    };
    let part = |text, at| number(Token { at, text }, "a size such as 3x4");
    let rows_value = part(rows, token.at)?;
    let cols_value = part(cols, token.at + rows.len() + 1)?;
    Ok(Placed {
        value: (rows_value, cols_value),
        at: token.at,
    })
}

/// Refuses a number outside of `least..=NODES_MAX`.
pub(super) fn count(
    number: &Placed<u64>,
    name: &str,
    least: usize,
) -> Result<Placed<usize>, Fault> {
    let at = number.at;
    let value = usize::try_from(number.value).unwrap_or(usize::MAX);
    if value < least {
        return Err(Fault::new(at, format!("{name} must be at least {least}")));
    }
    if value > NODES_MAX {
        return Err(Fault::new(at, format!("{name} is at most {NODES_MAX}")));
    }
    Ok(Placed { value, at })
}

fn choice<T: Copy>(
    token: Token<'_>,
    name: &str,
    all: &[T],
    word: fn(T) -> &'static str,
) -> Result<T, Fault> {
    if let Some(found) = all.iter().find(|value| word(**value) == token.text) {
        return Ok(*found);
    }
    let words: Vec<_> = all.iter().map(|value| word(*value)).collect();
    let mut hint = format!("allowed: {}", words.join(", "));
    if let Some(meant) = nearest(token.text, words.iter().copied()) {
        hint = format!("did you mean '{meant}'? {hint}");
    }
    Err(Fault::new(token.at, format!("{name} cannot be {token}")).hint(hint))
}
