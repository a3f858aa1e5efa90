//! What each token is (normal, control, ...) and which tokens end a generation. Files state it only in part: the rest
//! goes by the tokens' text, with the same lists that the converters' users rely on.
use std::collections::BTreeSet;

use super::vocabulary::Vocabulary;

/// A token's kind: one of the file's types, or several where the text overrules the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes(u8);

impl Attributes {
    const NORMAL: Self = Self(1);
    const UNKNOWN: Self = Self(2);
    const CONTROL: Self = Self(4);
    const USER_DEFINED: Self = Self(8);
    const BYTE: Self = Self(16);
    /// Unused and undefined tokens: never written, never matched as special.
    const NONE: Self = Self(0);

    fn from_type(token_type: Option<&i32>) -> Self {
        match token_type {
            None | Some(1) => Self::NORMAL,
            Some(2) => Self::UNKNOWN,
            Some(3) => Self::CONTROL,
            Some(4) => Self::USER_DEFINED,
            Some(6) => Self::BYTE,
            Some(_) => Self::NONE,
        }
    }

    fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    /// Control or unknown: text only when special tokens are asked for.
    pub fn is_control(self) -> bool {
        self.has(Self(Self::CONTROL.0 | Self::UNKNOWN.0))
    }

    /// Matched in text before anything else is tokenized, and written as its text stands.
    pub fn is_special(self) -> bool {
        self.is_control() || self.has(Self::USER_DEFINED)
    }

    /// Its piece is its text, decoded from the vocabulary's alphabet.
    pub fn is_normal(self) -> bool {
        self.has(Self::NORMAL)
    }

    /// `<0xNN>`: a single byte.
    pub fn is_byte(self) -> bool {
        self.has(Self::BYTE)
    }

    fn make_control(&mut self) {
        self.0 |= Self::CONTROL.0;
    }
}

/// End of turn, in the order in which one is looked for.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
/// Texts that end a generation wherever they are in a vocabulary.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPOSITORY: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR: &[&str] = &["<|file_sep|>"];
/// Markers of gpt-oss that are always written.
const ALWAYS_WRITTEN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The kinds of all tokens and the set that ends a generation.
pub(super) struct Kinds {
    pub attributes: Vec<Attributes>,
    pub end_of_generation: BTreeSet<u32>,
}

/// Sorts out kinds and the end-of-generation set. `id_of` finds a token by its text.
pub(super) fn classify(vocabulary: &Vocabulary, eos: Option<u32>, id_of: impl Fn(&str) -> Option<u32>) -> Kinds {
    let attributes =
        (0..vocabulary.tokens.len()).map(|id| Attributes::from_type(vocabulary.token_types.get(id))).collect();
    let mut kinds = Kinds { attributes, end_of_generation: BTreeSet::new() };
    // A token that the file names keeps the kind that the file gives it; one found by its text becomes control.
    let mut named_or_found = |stated: Option<u32>, texts: &[&str]| {
        stated.filter(|&id| vocabulary.contains(id)).or_else(|| {
            let id = texts.iter().find_map(|text| id_of(text))?;
            kinds.update(id, Attributes::make_control);
            Some(id)
        })
    };
    let ids = &vocabulary.ids;
    let eot = named_or_found(ids.eot, END_OF_TURN);
    let eom = named_or_found(ids.eom, &["<|eom_id|>"]);
    named_or_found(ids.fim_pre, FIM_PREFIX);
    named_or_found(ids.fim_suf, FIM_SUFFIX);
    named_or_found(ids.fim_mid, FIM_MIDDLE);
    let ending = [
        named_or_found(ids.fim_pad, FIM_PAD),
        named_or_found(ids.fim_rep, FIM_REPOSITORY),
        named_or_found(ids.fim_sep, FIM_SEPARATOR),
        eos,
        eot,
        eom,
    ];
    kinds.end_of_generation.extend(ending.into_iter().flatten());
    for id in END_OF_GENERATION.iter().filter_map(|text| id_of(text)) {
        kinds.end_of_generation.insert(id);
        kinds.update(id, Attributes::make_control);
    }
    for id in ALWAYS_WRITTEN.iter().filter_map(|text| id_of(text)) {
        kinds.update(id, |a| *a = Attributes::USER_DEFINED);
    }
    kinds.except_families(id_of);
    kinds
}

impl Kinds {
    fn update(&mut self, id: u32, change: impl FnOnce(&mut Attributes)) {
        if let Some(attributes) = usize::try_from(id).ok().and_then(|id| self.attributes.get_mut(id)) {
            change(attributes);
        }
    }

    /// Two families have an ordinary token whose text ends a generation elsewhere.
    fn except_families(&mut self, id_of: impl Fn(&str) -> Option<u32>) {
        let ends = |kinds: &Self, text: &str| id_of(text).filter(|id| kinds.end_of_generation.contains(id));
        let has = |kinds: &Self, text: &str| ends(kinds, text).is_some();
        let calls = has(self, "<|call|>") || has(self, "<|calls|>");
        if calls
            && (has(self, "<|return|>") || has(self, "<|flush|>"))
            && let Some(id) = ends(self, "<|end|>")
        {
            self.end_of_generation.remove(&id);
            self.update(id, |a| *a = Attributes::USER_DEFINED);
        }
        if has(self, "<|tool_response>")
            && let Some(id) = ends(self, "</s>")
        {
            self.end_of_generation.remove(&id);
            self.update(id, |a| *a = Attributes::NORMAL);
        }
    }
}
