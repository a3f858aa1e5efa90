//! Template source made ready for minijinja: the few things that Jinja2 under `transformers` has and it lacks.
//!
//! `{% generation %}` blocks (they mark the assistant's words for training) become plain blocks; what a loop runs over
//! goes through [`ITERABLE_FILTER`], what is assigned through [`ASSIGNED_FILTER`]. Everything else is left as it is,
//! broken templates included.

/// The filter that each loop's iterable is sent through.
pub(super) const ITERABLE_FILTER: &str = "fireside_iterable";
/// The filter that each assigned value is sent through.
pub(super) const ASSIGNED_FILTER: &str = "fireside_assigned";

/// Rewrites `source`.
pub(super) fn prepare(source: &str) -> String {
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
        if !tag.starts_with("{%") {
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
    out
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

/// Bytes of the string literal that `rest` begins with.
fn string_bytes(rest: &str, quote: u8) -> Option<usize> {
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
        "set" => assigned(after).map(|parts| (parts, ASSIGNED_FILTER)),
        _ => None,
    };
    if let Some(((target, value, tail), filter)) = filtered.filter(|((_, value, _), _)| !value.trim().is_empty()) {
        out.extend([before, word, target, "(", value, ")|", filter, " ", tail]);
        return;
    }
    let replacement = match word {
        "generation" => "if true",
        "endgeneration" => "endif",
        _ => word,
    };
    out.extend([before, replacement, after]);
}

/// Cuts what follows `set` into the target with the `=`, the value, and the tag's end. Block assignments have none.
fn assigned(after: &str) -> Option<(&str, &str, &str)> {
    let equals = after.find(['=', '|', '(', '%'])?;
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
                "{%for x in( f('%} if', [1 if a else 2]) )|fireside_iterable recursive%}",
            ),
            ("{% for index in [1]%}", "{% for index in( [1])|fireside_iterable %}"),
            ("{%- set ns.x = a if b else 'c = d' -%}", "{%- set ns.x =( a if b else 'c = d' )|fireside_assigned -%}"),
            ("{% set a, b = 1, 2 %}", "{% set a, b =( 1, 2 )|fireside_assigned %}"),
            ("{%+ generation -%}a{%- endgeneration %}", "{%+ if true -%}a{%- endif %}"),
        ] {
            assert_eq!(prepare(source), want);
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
            assert_eq!(prepare(source), source);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_rewritten_without_loss(source in r"(\{%|%\}|\{\{|\}\}|\{#|#\}|-| for | in | if | set |=|raw|endraw|generation|[x'\\(){}\[\]é]){0,24}") {
            let prepared = prepare(&source);
            let undone = prepared.replace(")|fireside_iterable ", "").replace(")|fireside_assigned ", "");
            let undone = undone.replace("in(", "in").replace("=(", "=");
            if !["generation", "in(", "=("].iter().any(|taken| source.contains(taken)) {
                prop_assert_eq!(undone, source);
            }
        }
    }
}
