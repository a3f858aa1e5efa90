//! Chat templates from a hostile file: work, memory, text and nesting without bound end in a typed error each, soon, and the
//! next render works. Every row was found to hang, to take gigabytes or to overflow the stack without the bound it names.
//!
//! A binary of its own because it counts what rendering allocates.
#[path = "support/counting.rs"]
mod counting;

use std::time::{Duration, Instant};

use counting::counted;
use fireside::Result;
use fireside::chat::{ChatTemplate, LocalTime, RenderInput};
use serde_json::{Value, json};

const NOW: LocalTime = LocalTime { year: 2024, month: 7, day: 26, hour: 1, minute: 2, second: 3 };
/// Most bytes that any of the templates may hold: what the fuel of a short conversation pays for, a few times over.
const MOST_BYTES: usize = 24 << 20;

fn render(source: &str, messages: &Value) -> Result<String> {
    let input = RenderInput { messages, tools: None, add_generation_prompt: true, template_args: None, now: NOW };
    ChatTemplate::new(Some(source), "<s>", "</s>")?.render(&input)
}

fn messages() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

/// Doubles a shared list sixty times through the parameters of a macro, then uses it.
fn doubled(using: &str) -> String {
    format!(
        "{{% macro m(l, k, d) %}}{{% if d %}}{{{{ m([l, l], [k, k], d - 1) }}}}{{% else %}}{{{{ {using} }}}}{{% endif %}}\
         {{% endmacro %}}{{{{ m([1], [1], 60) }}}}"
    )
}

/// Operators in a row, each of which holds what is before or behind it.
fn chains(length: usize) -> impl Iterator<Item = String> {
    let prefixes = ["not ", "-", "2 ** "].map(|op| format!("{{{{ {}1 }}}}", op.repeat(length)));
    let postfixes =
        [".a", "[0]", "|upper", " + 1", " ~ 1", " and 1", " == 1", " if 1 else 1", " is odd", "(1)", " in 1"]
            .map(|op| format!("{{{{ x{} }}}}", op.repeat(length)));
    let branches = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(length));
    let open = format!("{{{{ {}", "not ".repeat(length));
    prefixes.into_iter().chain(postfixes).chain([branches, open])
}

fn hostile() -> Vec<(String, &'static str)> {
    let fuel = "chat.template_fuel";
    let value = "chat.template_value";
    let depth = "chat.template_depth";
    let output = "chat.template_output";
    let mut all: Vec<(String, &'static str)> = [
        // Work.
        ("{% for i in range(999) %}{% for j in range(999) %}{% endfor %}{% endfor %}", fuel),
        ("{% for i in range(1000000000) %}{% endfor %}", fuel),
        ("{{ range(9223372036854775807, -9223372036854775807, -1) }}", fuel),
        ("{{ [[1] * 100000] * 100000 == [[1] * 100000] * 100000 }}", fuel),
        ("{{ ([1] * 99999) in ([[1] * 99999] * 99999) }}", fuel),
        ("{{ {([[1] * 99999] * 99999): 1} }}", fuel),
        ("{{ ([[1] * 99999] * 99999).count(1) }}", fuel),
        ("{{ ([[1] * 99999] * 99999)|upper }}", fuel),
        ("{{ '%s'|format([[1] * 99999] * 99999) }}", fuel),
        ("{{ '{}'.format([[1] * 99999] * 99999) }}", fuel),
        ("{{ [[1] * 99999] * 99999 }}", fuel),
        ("{{ [range(99999)] * 99999 == [range(99999)] * 99999 }}", fuel),
        ("{{ ([x] * 99999)|map('default', ([x] * 99999)|map('default', 1)|list)|list == [] }}", fuel),
        ("{{ (['a' * 1000000] * 10000)|sort|length }}", fuel),
        ("{{ (['a' * 1000000] * 10000)|unique|list|length }}", fuel),
        ("{{ ('a' * 1000000).strip('bcdefghij' * 100000 ~ 'a')|length }}", fuel),
        ("{{ ('a' * 1000000)|trim('bcdefghij' * 100000 ~ 'a')|length }}", fuel),
        // Memory.
        ("{{ 'x' * 1000000000 }}", fuel),
        ("{{ '{:>2000000000}'.format('x') }}", fuel),
        ("{{ '{:.2000000000f}'.format(1.5) }}", fuel),
        ("{{ '%2000000000d'|format(1) }}", fuel),
        ("{{ ('{0}' * 100000).format('a' * 1000000)|length }}", fuel),
        ("{{ (['a' * 1000000] * 99999)|join|length }}", fuel),
        ("{{ ''.join(['a' * 1000000] * 99999)|length }}", fuel),
        ("{{ ('a' * 1000000).replace('a', 'b' * 1000000)|length }}", fuel),
        ("{{ ('a' * 1000000)|replace('a', 'b' * 1000000)|length }}", fuel),
        ("{{ 'a'.replace('', 'b' * 3000000)|length }}", fuel),
        ("{{ ('a' * 3000000).split('a')|length }}", fuel),
        ("{{ ('a' * 3000000)|split('a')|length }}", fuel),
        ("{{ ('a\n' * 1500000).splitlines()|length }}", fuel),
        ("{{ ('a\n' * 1500000)|lines|length }}", fuel),
        ("{{ ('a' * 1000)|indent(100000000)|length }}", fuel),
        ("{{ [1]|batch(1000000000, 0)|list }}", fuel),
        ("{{ [1]|slice(1000000000)|list|length }}", fuel),
        ("{{ ([1] * 99999)|tojson(separators=['a' * 1000000, 'b'])|length }}", fuel),
        ("{{ ([[[[[[[[[[[[[[1]]]]]]]]]]]]]] * 99999)|tojson(indent=32)|length }}", fuel),
        ("{{ strftime_now('%c' * 1000000)|length }}", fuel),
        // Values that outgrow the input.
        ("{{ [1] * 1000000000 }}", value),
        ("{% for x in range(99999) %}{% endfor %}", value),
        (
            "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            value,
        ),
        (
            "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            value,
        ),
        ("{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}", value),
        ("{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", value),
        (
            "{% set ns = namespace(l={}) %}{% for i in range(64) %}{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}",
            value,
        ),
        ("{% for x in [[1]] recursive %}{{ loop([[x, x]]) }}{% endfor %}", value),
        ("{% macro m() %}{{ caller([[1] * 99, [1] * 99999]) }}{% endmacro %}{% call(x) m() %}{% endcall %}", value),
        ("{% with x = 'a' * 1000000 %}{% endwith %}", value),
        ("{% set (x, y) = ('a' * 1000000, 1) %}", value),
        // Nesting.
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", depth),
        ("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", depth),
        ("{% include 'chat' %}", depth),
        ("{% import 'chat' as c %}", depth),
        ("{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}", depth),
        ("{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}", depth),
        ("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns ~ '' }}", depth),
        ("{% set ns = namespace() %}{% set ns.a = [{'x': ns}] %}{{ ns|upper }}", depth),
        ("{% set ns = namespace() %}{% set (ns.a, x) = (ns, 1) %}{{ ns == ns.a }}", depth),
        // Text.
        ("{% for i in range(400) %}{{ 'a' * 5000 }}{% endfor %}", output),
    ]
    .into_iter()
    .map(|(source, code)| (source.to_owned(), code))
    .collect();
    let uses =
        ["''.join([l])", "l == k", "l ~ ''", "l|upper", "l|pprint", "'%s'|format(l)", "{l: 1}", "'{}'.format(l)"];
    all.extend(uses.map(|using| (doubled(using), value)));
    all.push(("{% if a %}".repeat(5_000), depth));
    all.push((format!("{{{{ {}1{} }}}}", "[".repeat(50_000), "]".repeat(50_000)), depth));
    all.extend(chains(50_000).map(|source| (source, depth)));
    all.push(("{{ x }}".repeat(200_000), "chat.template_too_long"));
    all
}

/// Times the plainest work that uses up the fuel, which takes some tens of milliseconds.
fn reference_time() -> Duration {
    let started = Instant::now();
    render("{% for i in range(999) %}{% for j in range(999) %}{% endfor %}{% endfor %}", &messages()).unwrap_err();
    started.elapsed()
}

#[test]
fn templates_without_bounds_end_with_their_code() {
    let (messages, good) = (messages(), "{{ messages[0].content }}");
    let reference = reference_time();
    let (started, hostile) = (Instant::now(), hostile());
    for (source, code) in &hostile {
        let shown = &source[..source.len().min(120)];
        let (result, held) = counted(|| render(source, &messages));
        match result {
            Ok(text) => panic!("{shown} rendered {} bytes", text.len()),
            Err(error) => assert_eq!(error.code, *code, "{shown}: {error}"),
        }
        assert!(held.peak <= MOST_BYTES + 8 * source.len(), "{shown} held {} bytes", held.peak);
        assert_eq!(render(good, &messages).unwrap(), "hi");
    }
    let (took, fair) = (started.elapsed(), reference * 20 * hostile.len() as u32);
    println!("{} templates took {took:?}; the reference takes {reference:?}", hostile.len());
    assert!(took < fair, "{took:?} for templates that should take less than {fair:?} in sum");
}

/// A stack of the size that a browser gives a Worker's wasm is deep enough for the deepest calls and values.
#[test]
fn the_deepest_nesting_fits_a_small_stack() {
    let run = || {
        let deep = |source: &str| render(source, &messages()).unwrap_err().code;
        assert_eq!(deep("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "chat.template_depth");
        let nested = "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}";
        assert_eq!(deep(nested), "chat.template_depth");
        // As long as chains may be: what they end in does not matter, as long as it is an answer.
        for source in chains(480) {
            let _ = render(&source, &messages());
        }
        assert_eq!(deep(&"{% if a %}".repeat(5_000)), "chat.template_depth");
        assert_eq!(deep(&format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000))), "chat.template_depth");
    };
    std::thread::Builder::new().stack_size(512 << 10).spawn(run).unwrap().join().unwrap();
}

/// The words of a template go into an error, but not all of them.
#[test]
fn errors_stay_short() {
    let error = render("{{ raise_exception('a' * 1000000) }}", &messages()).unwrap_err();
    assert_eq!(error.code, "chat.template_raised");
    assert!(error.message.len() < 2000 && error.details["raised"].as_str().unwrap().len() <= 1000);
}

/// Bounds grow with the input: what is large because the conversation is goes through.
#[test]
fn large_conversations_are_no_attack() {
    let content = "word ".repeat(200_000);
    let messages = json!([{"role": "user", "content": content}, {"role": "assistant", "content": content}]);
    let source = "{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.text = ns.text ~ m.content|trim %}\
                  {% endfor %}{% set all = messages %}{{ ns.text }}{{ all|tojson }}";
    assert!(render(source, &messages).unwrap().len() > 4_000_000);
}
