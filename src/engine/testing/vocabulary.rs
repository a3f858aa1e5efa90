//! A vocabulary of bytes: token for byte b is `byte(b)`.
use crate::chat::ChatTemplate;
use crate::engine::TextModel;
use crate::ids::TokenId;
use crate::tokenizer::{SpecialIds, Tokenizer, Vocabulary};

/// Starts texts; not added unless asked for.
const BOS: TokenId = TokenId(1);
/// Ends generations.
pub const EOS: TokenId = TokenId(2);
/// Stands for "nap": a token of several characters.
pub const NAP: TokenId = TokenId(259);

/// Shows everything that a template is given.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}\
    {% if tools %}tools={{ tools | length }};{% endif %}{% if mood %}{{ mood }};{% endif %}\
    {% if add_generation_prompt %}{{ strftime_now('%Y') }}:{% endif %}";

/// The token of one byte.
pub fn byte(b: u8) -> TokenId {
    TokenId(3 + u32::from(b))
}

/// 260 tokens: unknown, start, end, 256 bytes, "nap".
pub fn text_model() -> TextModel {
    let bytes = (0..=255u8).map(|b| format!("<0x{b:02X}>"));
    let tokens: Vec<String> =
        ["<unk>", "<s>", "</s>"].map(String::from).into_iter().chain(bytes).chain(["nap".to_owned()]).collect();
    let token_types = [2, 3, 3].into_iter().chain([6; 256]).chain([1]).collect();
    let vocabulary = Vocabulary {
        model: "llama".into(),
        scores: vec![0.0; tokens.len()],
        tokens: tokens.iter().collect(),
        token_types,
        ids: SpecialIds { bos: Some(BOS.0), eos: Some(EOS.0), unk: Some(0), ..SpecialIds::default() },
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    let template = ChatTemplate::new(Some(TEMPLATE), "<s>", "</s>").unwrap();
    TextModel::new(Tokenizer::new(&vocabulary).unwrap(), template)
}
