//! Template expressions, as far as `syntax` must read them: where products and the steps of slices are, and what is
//! between commas.
//! Broken expressions come out as they went in; they are for the compiler to report.

/// A piece of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// A name, number or string: a value ends here.
    Value,
    /// A word that ends the operand before it.
    Keyword,
    /// `is`: what follows belongs to the operand before it.
    Is,
    Open,
    Close,
    /// `*` alone.
    Times,
    /// `/`, `//`, `%`, `**`, `|`, `.`: parts of a product, or of an operand in it.
    Inner,
    /// `+` and `-`, which end a product unless they are signs.
    Sign,
    /// Every other operator.
    Outer,
}

const KEYWORDS: [&str; 7] = ["and", "or", "not", "in", "if", "else", "recursive"];

/// Bytes of the string literal that `rest` begins with.
pub(super) fn string_bytes(rest: &str, quote: u8) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// The token that `rest` begins with, and its bytes; `None` where there is none (an unclosed string).
fn token(rest: &str) -> Option<(Token, usize)> {
    let first = rest.chars().next()?;
    let two = rest.get(..2).unwrap_or_default();
    Some(match first {
        '"' | '\'' => (Token::Value, string_bytes(rest, u8::try_from(first).ok()?)?),
        c if c.is_alphanumeric() || c == '_' => {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            match &rest[..end] {
                "is" => (Token::Is, end),
                word if KEYWORDS.contains(&word) => (Token::Keyword, end),
                _ => (Token::Value, end),
            }
        }
        '(' | '[' | '{' => (Token::Open, 1),
        ')' | ']' | '}' => (Token::Close, 1),
        _ if matches!(two, "**" | "//") => (Token::Inner, 2),
        _ if matches!(two, "==" | "!=" | "<=" | ">=") => (Token::Outer, 2),
        '*' => (Token::Times, 1),
        '/' | '%' | '|' | '.' => (Token::Inner, 1),
        '+' | '-' => (Token::Sign, 1),
        _ => (Token::Outer, first.len_utf8()),
    })
}

/// How many of the tokens in `source` can put one expression inside another. Chains of operators do as brackets do.
pub(super) fn nesting_tokens(source: &str) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < source.len() {
        let rest = &source[at..];
        if let Some(space) = rest.chars().next().filter(|c| c.is_whitespace()) {
            at += space.len_utf8();
            continue;
        }
        let Some((token, bytes)) = token(rest) else { break };
        let nests = !matches!(token, Token::Value | Token::Close) && !rest.starts_with([',', ':']);
        count += usize::from(nests);
        at += bytes;
    }
    count
}

/// A stretch without operators of lower rank than `*`.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    /// Where its first token begins.
    start: Option<usize>,
    /// Where its last token ends.
    end: usize,
    is_product: bool,
}

/// What is between two brackets.
#[derive(Debug, Default)]
struct Level {
    chain: Chain,
    /// An index or slice, not a list.
    is_subscript: bool,
    num_colons: usize,
    /// Where a slice's step begins.
    step: Option<usize>,
    /// Where its last token ends.
    end: usize,
}

/// A stretch to be filtered: whether it is a step, and its bounds.
type Operand = (bool, usize, usize);

/// Sends each product in `source` through `product`, so that a list that is repeated is seen before it is used, and each
/// slice's step through `step`.
pub(super) fn filter_operands(source: &str, product: &str, step: &str) -> String {
    if !source.contains(['*', ':']) {
        return source.to_owned();
    }
    let Some(operands) = operands(source) else { return source.to_owned() };
    // Where two end, the inner one, a product, is closed first; an opening comes after what ends before it.
    let both = operands.into_iter().flat_map(|(is_step, from, to)| [(from, true, is_step), (to, false, is_step)]);
    let mut places: Vec<(usize, bool, bool)> = both.collect();
    places.sort_unstable();
    let mut out = String::with_capacity(source.len() + places.len() * (product.len() + 3));
    let mut done = 0;
    for (at, opens, is_step) in places {
        out.push_str(&source[done..at]);
        if opens {
            out.push('(')
        } else {
            out.extend([")|", if is_step { step } else { product }])
        }
        done = at;
    }
    out.push_str(&source[done..]);
    out
}

/// Products and steps; `None` where brackets or strings do not close.
fn operands(source: &str) -> Option<Vec<Operand>> {
    let mut found = Vec::new();
    let mut levels = vec![Level::default()];
    let (mut at, mut after_value, mut after_is) = (0, false, false);
    while at < source.len() {
        let rest = &source[at..];
        if let Some(space) = rest.chars().next().filter(|c| c.is_whitespace()) {
            at += space.len_utf8();
            continue;
        }
        let (token, bytes) = token(rest)?;
        let end = at + bytes;
        let level = levels.last_mut()?;
        let ends_chain = match token {
            Token::Keyword => !(after_is && rest.starts_with("not")),
            Token::Outer | Token::Close => true,
            Token::Sign => after_value,
            // A star without a value before it unpacks arguments.
            Token::Times => !after_value,
            _ => false,
        };
        if token == Token::Close {
            found.extend(levels.pop()?.operands());
            let outer = levels.last_mut()?;
            (outer.chain.end, outer.end) = (end, end);
        } else {
            level.begin_step(rest, at);
            level.end = end;
            if ends_chain {
                found.extend(std::mem::take(&mut level.chain).product());
            } else {
                level.chain.start.get_or_insert(at);
                level.chain.end = end;
                level.chain.is_product |= token == Token::Times;
            }
            if token == Token::Open {
                levels.push(Level { is_subscript: after_value && rest.starts_with('['), ..Level::default() });
            }
        }
        after_is = token == Token::Is;
        after_value = matches!(token, Token::Value | Token::Close);
        at = end;
    }
    found.extend(levels.pop()?.operands());
    levels.is_empty().then_some(found)
}

impl Level {
    fn begin_step(&mut self, rest: &str, at: usize) {
        if self.num_colons == 2 {
            self.step.get_or_insert(at);
        }
        self.num_colons += usize::from(self.is_subscript && rest.starts_with(':'));
    }

    fn operands(self) -> impl Iterator<Item = Operand> {
        let step = self.step.filter(|_| self.num_colons == 2).map(|start| (true, start, self.end));
        self.chain.product().into_iter().chain(step)
    }
}

impl Chain {
    fn product(self) -> Option<Operand> {
        self.start.filter(|_| self.is_product).map(|start| (false, start, self.end))
    }
}

/// Cuts `source` at its commas outside brackets and strings; `None` where those do not close.
pub(super) fn split_commas(source: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut from, mut at, mut depth) = (0, 0, 0usize);
    while at < source.len() {
        let rest = &source[at..];
        if depth == 0 && rest.starts_with(',') {
            parts.push(&source[from..at]);
            from = at + 1;
        }
        let (token, bytes) = token(rest)?;
        match token {
            Token::Open => depth += 1,
            Token::Close => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += bytes;
    }
    parts.push(&source[from..]);
    (depth == 0).then_some(parts)
}

/// Bytes of the bracketed group that `source` begins with.
pub(super) fn group_bytes(source: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0usize);
    while at < source.len() {
        let (token, bytes) = token(&source[at..])?;
        at += bytes;
        match token {
            Token::Open => depth += 1,
            Token::Close => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The names in a binding such as `a`, `(a, b)` or `a, (b, c)`; `None` where it holds anything else.
pub(super) fn names(binding: &str) -> Option<Vec<&str>> {
    let words = binding.split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')')).filter(|w| !w.is_empty());
    let names: Vec<&str> = words.collect();
    let is_name = |w: &&str| {
        w.chars().all(|c| c.is_alphanumeric() || c == '_')
            && !w.starts_with(|c: char| c.is_ascii_digit())
            && !KEYWORDS.contains(w)
    };
    (!names.is_empty() && names.iter().all(is_name)).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_wrapped_whole() {
        for (source, want) in [
            ("a * b", "(a * b)|f"),
            (" -a.x[1]|g(2) * -b / c + d ", " (-a.x[1]|g(2) * -b / c)|f + d "),
            ("[1] * 3 == [a * 2, 'x * y', *c]", "([1] * 3)|f == [(a * 2)|f, 'x * y', *c]"),
            ("(a * b) * c", "(((a * b)|f) * c)|f"),
            ("x[a:b * 2:c * d][::-1][1:2][f(1, y[2:])]", "x[a:(b * 2)|f:((c * d)|f)|g][::(-1)|g][1:2][f(1, y[2:])]"),
            ("[{a: b, c: d}, {x: {y: z}}]", "[{a: b, c: d}, {x: {y: z}}]"),
            ("a * b is divisibleby 3 and not c * d", "(a * b is divisibleby 3)|f and not (c * d)|f"),
            ("a is not b * c", "(a is not b * c)|f"),
            ("{'k': a * b if c else d, 'l': 2 ** 3}", "{'k': (a * b)|f if c else d, 'l': 2 ** 3}"),
            ("f(*args, **kwargs, n=a*b)", "f(*args, **kwargs, n=(a*b)|f)"),
            ("a ~ 'é' * 2 ~ c", "a ~ ('é' * 2)|f ~ c"),
            ("(a * b", "(a * b"),
            ("a * 'b", "a * 'b"),
            ("a * b)", "a * b)"),
        ] {
            assert_eq!(filter_operands(source, "f", "g"), want);
        }
    }

    #[test]
    fn commas_groups_and_names() {
        assert_eq!(split_commas("a=1, (b, c)=f(',', 2)").unwrap(), ["a=1", " (b, c)=f(',', 2)"]);
        assert_eq!(split_commas("a, (b"), None);
        assert_eq!(group_bytes("(a, [')'])x"), Some(10));
        assert_eq!(group_bytes("(a"), None);
        assert_eq!(names(" a, (b_1,c) "), Some(vec!["a", "b_1", "c"]));
        assert_eq!(names("a.b"), None);
        assert_eq!(names("1a"), None);
        assert_eq!(names(""), None);
    }
}
