//! Template source made ready for minijinja: the few things that Jinja2 under `transformers` has and it lacks.
//!
//! `{% generation %}` blocks (they mark the assistant's words for training) become plain blocks. What a loop runs over
//! goes through [`ITERABLE_FILTER`]; what gets a name (by `set`, `with`, as a parameter or in a loop that calls itself)
//! through [`BOUND_FILTER`] or [`ATTRIBUTE_FILTER`]; products through [`PRODUCT_FILTER`]. Those are the places where few steps make a value that is
//! large when it is walked, since parts can be shared. Everything else is left as it is, broken templates included.
use super::expression::{filter_operands, group_bytes, names, nesting_tokens, split_commas, string_bytes};

/// The filter that each loop's iterable is sent through.
pub(super) const ITERABLE_FILTER: &str = "fireside_iterable";
/// The filter that each value with a name is sent through.
pub(super) const BOUND_FILTER: &str = "fireside_bound";
/// The filter that each value of a namespace is sent through.
pub(super) const ATTRIBUTE_FILTER: &str = "fireside_attribute";
/// The filter that each slice's step is sent through.
pub(super) const STEP_FILTER: &str = "fireside_step";
/// The filter that each product is sent through.
pub(super) const PRODUCT_FILTER: &str = "fireside_product";

/// Most tokens of a tag that nest: minijinja bounds brackets and blocks, not chains of operators, and walks both recursively.
const MAX_NESTING_TOKENS: usize = 1000;
/// Most `elif` branches, each of which lies inside the one before it.
const MAX_BRANCHES: usize = 500;

/// Rewrites `source`; `None` where compiling it would take too deep a stack.
pub(super) fn prepare(source: &str) -> Option<String> {
    let mut branches = 0;
    let mut out = String::with_capacity(source.len() + source.len() / 16);
    let mut rest = source;
    while let Some(open) = rest.find('{') {
        let (text, tag) = rest.split_at(open);
        out.push_str(text);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map(|at| at + 2),
            Some(b'{') => expression_end(tag, "}}"),
            Some(b'%') => expression_end(tag, "%}"),
            _ => Some(1),
        };
        // An unclosed tag is for the compiler to report.
        let (tag, after) = tag.split_at(end.unwrap_or(tag.len()));
        rest = after;
        if tag.starts_with("{%") || tag.starts_with("{{") {
            branches += usize::from(first_word(tag) == "elif");
            if branches > MAX_BRANCHES || nesting_tokens(&tag[2..]) > MAX_NESTING_TOKENS {
                return None;
            }
        }
        if end.is_none() || !(tag.starts_with("{%") || tag.starts_with("{{")) {
            out.push_str(tag);
            continue;
        }
        let tag = filter_tag(tag);
        let tag = tag.as_str();
        if tag.starts_with("{{") {
            out.push_str(tag);
            continue;
        }
        push_block(tag, &mut out);
        if first_word(tag) == "raw" {
            let (verbatim, after) = rest.split_at(end_of_raw(rest));
            out.push_str(verbatim);
            rest = after;
        }
    }
    out.push_str(rest);
    Some(out)
}

/// Bytes of a tag up to and with its `close`, which counts only outside strings and brackets.
fn expression_end(tag: &str, close: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = 2;
    while at < tag.len() {
        let rest = tag.get(at..)?;
        if depth == 0 && rest.starts_with(close) {
            return Some(at + close.len());
        }
        at += match rest.as_bytes().first()? {
            quote @ (b'"' | b'\'') => string_bytes(rest, *quote)?,
            b'(' | b'[' | b'{' => {
                depth += 1;
                1
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                1
            }
            _ => rest.chars().next()?.len_utf8(),
        };
    }
    None
}

/// A closed tag with its products and steps filtered. Whitespace control is no operator.
fn filter_tag(tag: &str) -> String {
    let (opening, rest) = tag.split_at(2);
    let (inner, closing) = rest.split_at(rest.len() - 2);
    let signed = inner.strip_prefix(['-', '+']).map_or(0, |after| inner.len() - after.len());
    let body = inner.get(signed..).unwrap_or_default();
    let body = body.strip_suffix(['-', '+']).unwrap_or(body);
    // The word of a block is no operand of what follows it.
    let word = if opening == "{%" { first_word(tag).len() + body.len() - body.trim_start().len() } else { 0 };
    let Some((word, expression)) = body.split_at_checked(word) else { return tag.to_owned() };
    let filtered = filter_operands(expression, PRODUCT_FILTER, STEP_FILTER);
    [opening, &inner[..signed], word, &filtered, &inner[signed + body.len()..], closing].concat()
}

/// What a block tag begins with, after its whitespace control.
fn first_word(tag: &str) -> &str {
    let inner = tag.get(2..).unwrap_or_default();
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start();
    inner.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Bytes up to the `endraw` tag.
fn end_of_raw(rest: &str) -> usize {
    let mut from = 0;
    while let Some(open) = rest.get(from..).and_then(|text| text.find("{%")) {
        let at = from + open;
        if rest.get(at..).is_some_and(|tag| first_word(tag) == "endraw") {
            return at;
        }
        from = at + 2;
    }
    rest.len()
}

fn push_block(tag: &str, out: &mut String) {
    let word = first_word(tag);
    let start = word.as_ptr() as usize - tag.as_ptr() as usize;
    let (before, from_word) = tag.split_at(start);
    let after = &from_word[word.len()..];
    let filtered = match word {
        "for" => iterable(after).map(|parts| (parts, ITERABLE_FILTER)),
        "set" => assigned(after).map(|parts| {
            let is_attribute = parts.0.contains('.');
            (parts, if is_attribute { ATTRIBUTE_FILTER } else { BOUND_FILTER })
        }),
        _ => None,
    };
    let bound = bound_names(word, after);
    if let Some(((target, value, tail), filter)) = filtered.filter(|((_, value, _), _)| !value.trim().is_empty()) {
        out.extend([before, word, target, "(", value, ")|", filter, " ", tail]);
    } else {
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => word,
        };
        out.extend([before, replacement, after]);
    }
    if let Some(names) = bound {
        // The end of the tag, with its whitespace control, is the end of what is put behind it.
        let end = if after.ends_with("-%}") || after.ends_with("+%}") { 3 } else { 2 };
        let end = &after[after.len() - end..];
        out.extend(["{% if [", &names.join(","), "]|", BOUND_FILTER, " %}{% endif ", end]);
    }
}

/// The names that a block gives to values that come from elsewhere: parameters, `with`, and loops that call themselves.
fn bound_names<'t>(word: &str, after: &'t str) -> Option<Vec<&'t str>> {
    let body = after.strip_suffix("%}")?;
    let body = body.strip_suffix(['-', '+']).unwrap_or(body);
    let target = |part: &'t str| part.split('=').next().and_then(names);
    let all = |parts: Vec<&'t str>| {
        let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
        parts.map(target).collect::<Option<Vec<_>>>().map(|names| names.concat()).filter(|names| !names.is_empty())
    };
    match word {
        "macro" => all(parameters(body.get(body.find('(')?..)?)?),
        "call" => all(parameters(body.trim_start())?),
        "with" => all(split_commas(body)?),
        "for" => {
            let (target, _, tail) = iterable(after)?;
            let is_recursive = tail.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "recursive");
            names(target.trim_end().strip_suffix("in")?).filter(|_| is_recursive)
        }
        _ => None,
    }
}

/// What is between the commas of the brackets that `source` begins with.
fn parameters(source: &str) -> Option<Vec<&str>> {
    let end = group_bytes(source.strip_prefix('(').map(|_| source)?)?;
    split_commas(source.get(1..end - 1)?)
}

/// Cuts what follows `set` into the target with the `=`, the value, and the tag's end. Block assignments have none.
fn assigned(after: &str) -> Option<(&str, &str, &str)> {
    let grouped = after.len() - after.trim_start().len();
    let from = after.get(grouped..).filter(|rest| rest.starts_with('(')).map_or(Some(0), group_bytes)? + grouped;
    let equals = from + after.get(from..)?.find(['=', '|', '(', '%'])?;
    if after.as_bytes().get(equals) != Some(&b'=') {
        return None;
    }
    let (target, rest) = after.split_at(equals + 1);
    let body = rest.strip_suffix("%}")?;
    let value = body.strip_suffix(['-', '+']).unwrap_or(body);
    Some((target, value, &rest[value.len()..]))
}

/// Cuts what follows `for` into the targets with ` in `, the iterable, and the rest with the tag's end.
fn iterable(after: &str) -> Option<(&str, &str, &str)> {
    let mut start = None;
    let mut depth = 0usize;
    let mut at = 0;
    while at < after.len() {
        let rest = after.get(at..)?;
        let first = rest.chars().next()?;
        let ends = rest.starts_with("%}") || ["-%}", "+%}"].iter().any(|end| rest.starts_with(end));
        let word_bytes = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        match (start, &rest[..word_bytes]) {
            (None, "in") if depth == 0 => start = Some(at + word_bytes),
            (Some(from), word) if depth == 0 && (ends || matches!(word, "if" | "recursive")) => {
                return Some((after.get(..from)?, after.get(from..at)?, rest));
            }
            _ => {}
        }
        match first {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += match first {
            '"' | '\'' => string_bytes(rest, u8::try_from(first).ok()?)?,
            _ => word_bytes.max(first.len_utf8()),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loops_check_what_they_run_over() {
        for (source, want) in [
            ("{% for x in xs %}", "{% for x in( xs )|fireside_iterable %}"),
            (
                "{%- for k, v in d.items() if k != 'in' -%}",
                "{%- for k, v in( d.items() )|fireside_iterable if k != 'in' -%}",
            ),
            (
                "{%for x in f('%} if', [1 if a else 2]) recursive%}",
                "{%for x in( f('%} if', [1 if a else 2]) )|fireside_iterable recursive%}{% if [x]|fireside_bound %}{% endif %}",
            ),
            ("{% for index in [1]%}", "{% for index in( [1])|fireside_iterable %}"),
            ("{%- set ns.x = a if b else 'c = d' -%}", "{%- set ns.x =( a if b else 'c = d' )|fireside_attribute -%}"),
            ("{% set (a, b) = (1, 2) %}", "{% set (a, b) =( (1, 2) )|fireside_bound %}"),
            ("{% set a, b = 1, 2 %}", "{% set a, b =( 1, 2 )|fireside_bound %}"),
            ("{%+ generation -%}a{%- endgeneration %}", "{%+ if true -%}a{%- endif %}"),
            ("{{- a * b -}}", "{{- (a * b)|fireside_product -}}"),
            ("{% if a*b %}", "{% if (a*b)|fireside_product %}"),
            ("{% set x = [1] * n -%}", "{% set x =( ([1] * n)|fireside_product )|fireside_bound -%}"),
        ] {
            assert_eq!(prepare(source).unwrap(), want);
        }
    }

    #[test]
    fn parameters_are_checked_where_they_come_in() {
        for (source, want) in [
            (
                "{%- macro m(a, b=[1, ')']) -%}\n x",
                "{%- macro m(a, b=[1, ')']) -%}{% if [a,b]|fireside_bound %}{% endif -%}\n x",
            ),
            ("{% macro m() %}", "{% macro m() %}"),
            ("{% macro m(1) %}", "{% macro m(1) %}"),
            ("{% call(x) m(y) +%}", "{% call(x) m(y) +%}{% if [x]|fireside_bound %}{% endif +%}"),
            ("{% call m(y) %}", "{% call m(y) %}"),
            (
                "{% with (a, b) = c, d = [c, c] %}",
                "{% with (a, b) = c, d = [c, c] %}{% if [a,b,d]|fireside_bound %}{% endif %}",
            ),
            ("{% with %}", "{% with %}"),
            (
                "{% for a, b in xs recursive %}",
                "{% for a, b in( xs )|fireside_iterable recursive %}{% if [a,b]|fireside_bound %}{% endif %}",
            ),
        ] {
            assert_eq!(prepare(source).unwrap(), want);
        }
    }

    #[test]
    fn everything_else_is_left_alone() {
        for source in [
            "{# {% for x in xs %} #}",
            "{% raw %}{% for x in xs %}{{ '{% generation %}' }}{% endraw %}{{ a }}",
            "{{ '{% for x in xs %}' }}",
            "{{ {'a': {'b': '}}'}} }}",
            "{% for x",
            "{% for x in %}",
            "{% set x %}a = b{% endset %}",
            "{% set x | upper %}{% endset %}",
            "{% set x = %}",
            "{% set x = 1",
            "{% for x in 'unclosed %}",
            "{% if generation == 1 %}{ { %",
            "{",
            "{{",
            "{%",
            "",
        ] {
            assert_eq!(prepare(source).unwrap(), source);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_rewritten_without_loss(source in r"(\{%|%\}|\{\{|\}\}|\{#|#\}|-| for | in | if | set |=|raw|endraw|generation|[x'\\(){}\[\]é]){0,24}") {
            let prepared = prepare(&source).unwrap();
            let undone = prepared.replace(")|fireside_iterable ", "").replace(")|fireside_bound ", "");
            let undone = undone.replace("in(", "in").replace("=(", "=");
            // What is put behind a tag, and around a product, has tests of its own.
            if !["generation", "in(", "=(", "recursive", "*", "[", "."].iter().any(|taken| source.contains(taken)) {
                prop_assert_eq!(undone, source);
            }
        }
    }
}
